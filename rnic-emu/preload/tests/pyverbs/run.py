"""Runs rdma-core's own Python tests, as Debian's python3-pyverbs ships them, and prints one line for each.

    run.py FOLDER MODULE...

FOLDER holds the tests, some of them gzipped. Lines are NAME, OUTCOME and reason, separated by tabs. The tests are
imported as they are; this replaces only their command line, which needs the package's folder to be writable and prints
for people.
"""

import gzip
import importlib
import os
import shutil
import sys
import tempfile
import unittest


def unpack(folder, to):
    os.mkdir(to)
    for name in os.listdir(folder):
        source = os.path.join(folder, name)
        if name.endswith(".py"):
            shutil.copy(source, to)
        elif name.endswith(".py.gz"):
            with gzip.open(source) as packed, open(os.path.join(to, name[:-3]), "wb") as out:
                shutil.copyfileobj(packed, out)
    # The package's own __init__ imports every module, those of other vendors' devices too.
    with open(os.path.join(to, "__init__.py"), "w"):
        pass


class Lines(unittest.TestResult):
    """Prints each outcome as it comes: a test that ends the interpreter is then seen to be the one without a line."""

    def say(self, test, outcome, reason=""):
        name = test.id().removeprefix("tests.")
        print(name, outcome, " ".join(str(reason).split()), sep="\t", flush=True)

    def startTest(self, test):
        super().startTest(test)
        print("#", test.id().removeprefix("tests."), flush=True)

    def addSuccess(self, test):
        self.say(test, "pass")

    def addSkip(self, test, reason):
        self.say(test, "skip", reason)

    def addFailure(self, test, err):
        self.say(test, "fail", err[1])

    def addError(self, test, err):
        self.say(test, "error", f"{err[0].__name__}: {err[1]}")

    def addSubTest(self, test, subtest, err):
        if err:
            self.say(test, "fail", f"{subtest}: {err[1]}")


def main(folder, modules):
    with tempfile.TemporaryDirectory() as scratch:
        unpack(folder, os.path.join(scratch, "tests"))
        sys.path[:0] = [scratch, os.path.join(scratch, "tests")]
        sys.argv = ["run.py", "--dev", "emu0", "--gid", "0"]
        from args_parser import parser

        parser.parse_args()
        for name in modules:
            module = importlib.import_module(f"tests.{name}")
            unittest.defaultTestLoader.loadTestsFromModule(module).run(Lines())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
