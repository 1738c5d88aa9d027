def pytest_addoption(parser):
    parser.addoption("--implementation", default="my", help="the folder of somebody's files")
