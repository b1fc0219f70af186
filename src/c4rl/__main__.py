"""The process `c4rl`, also `python -m c4rl`."""

import signal


def start() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules load: end, without a traceback
    from c4rl.cli.main import command_line

    command_line()


if __name__ == "__main__":
    start()
