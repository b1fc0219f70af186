"""The physics of D4RL's MuJoCo (1.5 to 2.0) on a current one: the same model, compiled so that it moves as it did then.

Four things changed in MuJoCo since, and all are repaired here; docs/environments.md has the proof.

- A capsule of radius r and half length h had the mass and inertia of a cylinder of length 2h + r.
- The margin of a contact was the larger of its geoms' margins; from 3.5 on it is their sum.
- Convex pairs collided by libccd, with one contact each, not by the native and multi-contact routines.
- Setting a state normalised the quaternions in it.

The XML is edited as text, because MuJoCo's own editor, MjSpec, exists from 3.2 on only.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

Array = np.ndarray

PHYSICS = "d4rl-1"  # to be counted up whenever scores may move

_SUMS_MARGINS = tuple(int(part) for part in mujoco.__version__.split(".")[:2]) >= (3, 5)
_ORIENTATIONS = ("quat", "axisangle", "euler", "xyaxes", "zaxis", "fromto")


class D4RLPhysics:
    """Mix-in before a MujocoEnv of gymnasium or gymnasium-robotics: the environment runs on the repaired model."""

    fullpath: str
    model: mujoco.MjModel

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        model = compile_model(Path(self.fullpath))
        return model, mujoco.MjData(model)

    def set_state(self, qpos: Array, qvel: Array) -> None:
        qpos = np.array(qpos, np.float64)
        mujoco.mj_normalizeQuat(self.model, qpos)
        super().set_state(qpos, qvel)  # type: ignore[misc]


def compile_model(source: str | Path) -> mujoco.MjModel:
    """The repaired model of an XML text, or of an XML file with what it includes."""
    root = _read(source) if isinstance(source, Path) else ElementTree.fromstring(source)
    _set_inertias(root)
    model = _compile(root)
    if _SUMS_MARGINS:
        model.geom_margin[:] = _halved(model.geom_margin)
    for routine in ("NATIVECCD", "MULTICCD"):  # flags that older versions do not have
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{routine}", 0))
    return model


def _halved(margins: Array) -> Array:
    """Margins whose sums are the larger ones of before, wherever a geom that has a margin takes part."""
    values = set(margins[margins > 0].tolist())
    if len(values) > 1:
        raise ValueError(f"margins of geoms: found {sorted(values)}, expected one value besides 0")
    return np.full_like(margins, max(values, default=0.0) / 2)


def _set_inertias(root: Element) -> None:
    """Give every body the explicit inertia it has in a twin of the model whose capsules are cylinders."""
    model, twin = _compile(root), ElementTree.fromstring(ElementTree.tostring(root))
    geoms = [geom for body in _bodies(twin) for geom in body.findall("geom")]
    if len(geoms) != model.ngeom:
        raise ValueError(f"geoms in the XML: found {len(geoms)}, expected the model's {model.ngeom}")
    for i in map(int, np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE)):
        radius, half_length, _ = model.geom_size[i]
        geoms[i].attrib = {key: value for key, value in geoms[i].items() if key not in _ORIENTATIONS} | {
            "type": "cylinder",
            "size": _text([radius, half_length + radius / 2]),
            "pos": _text(model.geom_pos[i]),
            "quat": _text(model.geom_quat[i]),
        }
    inertial = _compile(twin)
    for b, body in enumerate(_bodies(root)):
        if inertial.body_mass[b] > 0 and b > 0:
            for explicit in body.findall("inertial"):
                body.remove(explicit)
            values = {
                "mass": _text(inertial.body_mass[b : b + 1]),
                "diaginertia": _text(inertial.body_inertia[b]),
                "pos": _text(inertial.body_ipos[b]),
                "quat": _text(inertial.body_iquat[b]),
            }
            body.insert(0, Element("inertial", values))
    for compiler in root.findall("compiler"):
        compiler.attrib.pop("settotalmass", None)  # the twin's masses add up to it
        compiler.attrib.pop("inertiafromgeom", None)
    root.append(Element("compiler", inertiafromgeom="false"))


def _bodies(root: Element) -> Iterator[Element]:
    """Elements in the order of MuJoCo's body ids: the world, then every body before its children."""
    world = Element("worldbody")
    for part in root.findall("worldbody"):
        world.extend(part)
    yield world
    yield from (body for top in world.findall("body") for body in top.iter("body"))


def _compile(root: Element) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))


def _text(values: Any) -> str:
    return " ".join(repr(float(value)) for value in values)  # every digit


def _read(path: Path) -> Element:
    """The file with its includes in place and its folders absolute: the text compiles anywhere."""
    root, folder = ElementTree.parse(path).getroot(), path.resolve().parent
    _insert_includes(root, folder)
    for compiler in root.findall("compiler"):
        compiler.attrib.pop("coordinate", None)  # "local" is the only one left, and newer versions refuse the word
        for name in ("meshdir", "texturedir"):
            if name in compiler.attrib:
                compiler.set(name, str(folder / compiler.attrib[name]))
    root.insert(0, Element("compiler", meshdir=str(folder), texturedir=str(folder)))
    return root


def _insert_includes(parent: Element, folder: Path) -> None:
    while (include := parent.find("include")) is not None:
        i = list(parent).index(include)
        parent[i : i + 1] = ElementTree.parse(folder / include.attrib["file"]).getroot()
    for child in parent:
        _insert_includes(child, folder)
