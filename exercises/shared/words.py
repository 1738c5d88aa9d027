"""What edits of a solution put there: see edits.py. A semicolon stands between items."""

WORDS = """
True False; triu tril; + - * /; & |; and or; < <= > >= == !=; -1 -2 0 1 2 (0,1) (1,2) (0,1,2,3);
1 2 3 4; 0.5 1 0.25 -0.5; 10000 1000 100; sin cos; mean sum amax; maximum minimum; log log2 log10;
gelu relu silu tanh sigmoid elu softplus sin; softmax sigmoid log_softmax; exp exp2 sigmoid;
-torch.inf -1000000000.0 0.0 -1.0 -10.0 -100.0
""".split(";")  # of which one is taken for another
ACTIONS = """
_.detach(); -_; _ + 1; _ - 1; _.exp(); _.exp() / _.exp().sum(-1, keepdim=True); _.mT; 1 - _;
2 * _; _ / 2; _ * _; _ ** 0.5; _[:1]; _.relu();
_.abs(); _.tril(); _.softmax(-1); _.softmax(0); _.softmax(1); _.softmax(-2);
_.flatten(-2).softmax(-1).view_as(_); _.roll(1, -1);
_.mT.reshape(_.shape); _.swapaxes(1, 2).reshape(_.shape); _.mean(-1, keepdim=True);
_ - _.mean(-1, keepdim=True); _ / _.sum(-1, keepdim=True); _ / _.norm(dim=-1, keepdim=True);
F.gelu(_, approximate='tanh'); _ * (1.702 * _).sigmoid();
_[::-1]; _[1], _[0], *_[2:]; _[1:]; _[:-1]; [_[0], *_]; [*_, _[-1]];
~_; 0 * _; 0 * _ + 1; 1 / _; _ | True; (_ | True).tril();
_.log(); 2 ** _.log(); _ * math.log(2); _ / math.log(2); _.flip(-1); _.flip(-2); _.roll(-1, -1);
_.roll(1, -2); _.roll(-1, -2); _.swapaxes(0, 1); _.reshape(_.mT.shape).mT;
_.sum(1, keepdim=True).expand_as(_); _.sort(-1, descending=True)[0];
_.unflatten(-1, (-1, 2)).flip(-1).flatten(-2);
_.unflatten(-1, (-1, 2)).mT.flatten(-2); _.unflatten(-1, (2, -1)).mT.flatten(-2)
""".split(";")  # what may be done to any value _
