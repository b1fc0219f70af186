"""Frames of an episode, drawn by MuJoCo in a process of its own: where a graphics driver crashes, nothing else does."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.numpy_policy import NumpyPolicy, policy_bytes, policy_from_bytes
from c4rl.core.worker_process import worker_environment
from c4rl.environments.episodes import steps
from c4rl.environments.tasks import Task

SIZE = 160  # pixels, both ways
SECONDS = 60.0
CAMERAS = ("track", "fixed")  # those of gymnasium's and D4RL's models; else MuJoCo's own


def render_episode(task: Task, policy: NumpyPolicy, seed: int, count: int) -> np.ndarray:
    """`count` frames, evenly spread over one episode of the policy, [count, SIZE, SIZE, 3] uint8."""
    graphics = {} if "DISPLAY" in os.environ else {"MUJOCO_GL": "egl"}  # without a screen
    message = json.dumps({"task": asdict(task), "seed": seed, "count": count}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from c4rl.environments.rendering import serve; serve()"],
            input=message + b"\n" + policy_bytes(policy),
            capture_output=True,
            timeout=SECONDS,
            env=graphics | worker_environment(),
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"frames of {task.name}: none after {SECONDS:.0f} seconds, expected them by then") from None
    if len(done.stdout) != count * SIZE * SIZE * 3:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise InputError(f"frames of {task.name}: MuJoCo cannot render here ({reason})")
    return np.frombuffer(done.stdout, np.uint8).reshape(count, SIZE, SIZE, 3)


def serve() -> None:
    """The drawing process: a task and a policy in, frames out."""
    import mujoco

    from c4rl.environments.making import make_environment

    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints must not mix with the frames
    wanted = json.loads(sys.stdin.buffer.readline())
    policy = policy_from_bytes(sys.stdin.buffer.read())
    environment = make_environment(Task(**wanted["task"]))
    simulator: Any = environment.unwrapped
    model, data = simulator.model, simulator.data
    states = [(data.qpos.copy(), data.qvel.copy()) for _ in steps(environment, policy, wanted["seed"])]
    names = [model.camera(i).name for i in range(model.ncam)]
    camera: Any = next((name for name in CAMERAS if name in names), names[0] if names else -1)
    if hasattr(simulator, "view"):
        camera = mujoco.MjvCamera()
        for name, value in simulator.view.items():
            setattr(camera, name, value)
    with mujoco.Renderer(model, SIZE, SIZE) as renderer:
        for place in np.linspace(0, len(states) - 1, wanted["count"]).round().astype(int):
            data.qpos[:], data.qvel[:] = states[place]
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            frames.write(renderer.render().tobytes())
    frames.flush()
