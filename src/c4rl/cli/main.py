"""The command line. Commands import what they need when they run, so that `c4rl tasks` does not wait for PyTorch."""

import difflib
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.table import Table

from c4rl.cli import (
    bench,
    clusters,
    completion,
    data,
    demo,
    diagnose,
    doctor,
    evaluate,
    export,
    figure,
    ope,
    report,
    table,
    tasks,
    train,
    train_behaviour,
    watch,
)
from c4rl.cli.parsing import Arguments
from c4rl.core.errors import InputError, Interrupted, WorkFailed, printable
from c4rl.core.extras import how_to_install
from c4rl.core.version import __version__
from c4rl.training.stopping import StopRequests


def _completion(arguments: Arguments) -> int:
    return completion.completion(arguments, COMMANDS)


_completion.__doc__ = completion.completion.__doc__

COMMANDS: dict[str, Callable[[Arguments], int]] = {
    "demo": demo.demo,
    "data record": data.record,
    "data train-behaviour": train_behaviour.train_behaviour,
    "data info": data.info,
    "data convert": data.convert,
    "data fetch": data.fetch,
    "doctor": doctor.doctor,
    "tasks": tasks.tasks,
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "export": export.export,
    "ope": ope.ope,
    "diagnose": diagnose.diagnose,
    "clusters": clusters.clusters,
    "watch": watch.watch,
    "report": report.report,
    "table": table.table,
    "figure": figure.figure,
    "bench table": bench.table,
    "bench pages": bench.pages,
    "bench speed": bench.speed,
    "completion": _completion,
}


def command_line() -> None:
    """The process `c4rl`."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files, and terminals, need not be UTF-8
    interruptions: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interruptions.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    StopRequests.process_ends_with_job = True
    try:
        code = main()
    except SystemExit:  # after --help; or rich saw that nobody reads its output any more
        code = 0
    except KeyboardInterrupt:  # one more, while the first was answered
        code = 130
    except Exception:
        if not interruptions:
            raise
        print("c4rl: interrupted", file=sys.stderr)  # while a module was loading, which made another error of it
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: one more Ctrl-C must not look like a crash
    try:
        sys.stdout.flush()
    except OSError as error:  # the disk that it goes to is full, or nobody reads on
        if code == 0 and not isinstance(error, BrokenPipeError):
            code = _refuse(f"the output could not be written ({error.strerror})")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries again when it ends
    try:
        sys.stderr.flush()
    except OSError:  # nobody can be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


def main(arguments: Arguments | None = None) -> int:
    """Exit codes: 0 done, 1 work failed, 2 bad input (one sentence on stderr), 130 interrupted (all saved)."""
    try:
        return _command(sys.argv[1:] if arguments is None else arguments)
    except InputError as error:
        return _refuse(str(error))
    except WorkFailed as failure:
        print(f"c4rl: {printable(str(failure))}", file=sys.stderr)
        return 1
    except Interrupted as stop:
        print(f"c4rl: {printable(str(stop))}", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if (advice := how_to_install(error.name)) is None:
            raise
        return _refuse(advice)
    except KeyboardInterrupt:
        print("c4rl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except (MemoryError, RuntimeError) as error:  # PyTorch has no class of its own for a CPU's memory
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        asked = re.search(r"allocate [\d.]+ \w+", str(error))
        found = f"not enough memory{f' to {asked[0]}' if asked else ''}"
        return _refuse(f"found {found}, expected smaller networks, batches or datasets, or fewer runs")
    except OSError as error:  # a file that cannot be read or written; the system says why
        if error.strerror is None:
            raise
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else f"found: {error.strerror}")


def _refuse(sentence: str) -> int:
    with suppress(OSError):  # nobody can be told
        print(f"c4rl: {printable(sentence)}", file=sys.stderr)
    return 2


def _command(arguments: Arguments) -> int:
    if arguments[:1] == ["--version"]:
        print(f"c4rl {__version__}")
        return 0
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return COMMANDS[name](arguments[words:])
    first = arguments[0] if arguments and arguments[0] not in ("-h", "--help") else ""
    group = {name: command for name, command in COMMANDS.items() if not first or name.startswith(f"{first} ")}
    if group and arguments[1:] in ([], ["-h"], ["--help"]):
        return _help(group)
    close = difflib.get_close_matches(" ".join(arguments[:2]), COMMANDS, n=1)
    hint = f"; did you mean `c4rl {close[0]}`?" if close else ""
    raise InputError(f"found '{' '.join(arguments[:2])}', expected one of the commands {', '.join(COMMANDS)}{hint}")


def _help(commands: dict[str, Callable[[Arguments], int]]) -> int:
    console = Console()
    console.print("c4rl: offline reinforcement learning for small data. `c4rl COMMAND --help` tells more.\n")
    table = Table.grid(padding=(0, 3))
    for name, command in commands.items():
        table.add_row(f"  c4rl {name}", (command.__doc__ or "").splitlines()[0])
    console.print(table)
    return 0
