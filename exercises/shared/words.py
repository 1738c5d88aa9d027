"""What edits of a solution put there: see edits.py. Items end with a semicolon."""

WORDS = """
True False; - + /; + -; * / +; / *; & |; and or; < <= > >=; <= < >= >; > >= < <=; == <= != >=;
-1 -2 0 (0,1) (0,1,2,3); 0 1 -1; 1 0 2; 2 1 4 3; 0.5 1 0.25 -0.5; 10000 1000 100; sin cos;
cos sin; mean sum amax; sum mean amax; amax mean sum; maximum minimum; log log2 log10;
gelu relu silu tanh sigmoid; elu relu softplus sigmoid silu; tanh sigmoid relu sin;
softmax sigmoid log_softmax; exp exp2 sigmoid; -torch.inf 0.0 -1.0 -10.0 -100.0
""".split(";")  # a word, and what is taken for it
INSIDE = """
x.exp(); -x; x + 1; x - 1; 1 - x; 2 * x; x / 2; x * x; x ** 0.5; x.mT; x[:1]; x.abs();
x.tril(); x.softmax(-1); x.relu(); x.softmax(0); x.softmax(1); x.softmax(-2);
x.flatten(-2).softmax(-1).view_as(x); x.roll(1, -1);
x.mT.reshape(x.shape); x.swapaxes(1, 2).reshape(x.shape); x.mean(-1, keepdim=True);
x - x.mean(-1, keepdim=True); x / x.sum(-1, keepdim=True); x / x.norm(dim=-1, keepdim=True);
F.gelu(x, approximate='tanh'); x * (1.702 * x).sigmoid(); turn(x); f(x)
""".split(";")  # what may be done to any x
WHOLE = """
x[::-1]; x[1], x[0], *x[2:]; ~x; 0 * x; 0 * x + 1; 1 / x; x | True; (x | True).tril();
x.log(); 2 ** x.log(); x * math.log(2); x / math.log(2); x.flip(-1); x.flip(-2); x.roll(-1, -1);
x.roll(1, -2); x.roll(-1, -2); x.swapaxes(0, 1); x.reshape(x.mT.shape).mT;
x.sum(1, keepdim=True).expand_as(x); x.sort(-1, descending=True)[0];
x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2);
x.unflatten(-1, (-1, 2)).mT.flatten(-2); x.unflatten(-1, (2, -1)).mT.flatten(-2)
""".split(";")  # what may be done to an argument or a result x, too
SCALES = "x * {0}", "x / {0}", "x * {0} ** 0.5", "x / {0} ** 0.5"
