#!/usr/bin/env python3
"""Runs boots: tests/vm/run.py [--cache FOLDER] [--program HEADWATER] [--keep] [BOOT.sh ...], by default all of boots/.

Input: boot files. Output: one line for each promise, exit status 0 if all held. `--fetch` only fetches kernel and QEMU.
"""

import argparse
import glob
import os
import shutil
import sys
import tempfile
import time

import machine
import parts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(machine.HERE, "../../target"))
    parser.add_argument("--cache", default=os.environ.get("HEADWATER_VM_CACHE", os.path.join(target, "vm")))
    parser.add_argument("--program", default=os.path.join(target, "debug/headwater"))
    parser.add_argument("--keep", action="store_true", help="keep each run's folder: console, logs, data")
    parser.add_argument("--fetch", action="store_true", help="fetch kernel and QEMU, boot nothing")
    parser.add_argument("boots", nargs="*", default=sorted(glob.glob(f"{machine.HERE}/boots/*.sh")))
    options = parser.parse_args()
    cache = os.path.abspath(options.cache)
    if options.fetch:
        parts.once(cache, parts.SYSTEM, parts.make_system)
        parts.once(cache, "qemu", parts.make_qemu)
        return 0
    failed = []
    for path in options.boots:
        boot = machine.Boot(path)
        folder = tempfile.mkdtemp(prefix=f"headwater-vm-{boot.name}-")
        started = time.monotonic()
        print(f"== {boot.name}", flush=True)
        try:
            status = machine.run(boot, cache, folder, os.path.abspath(options.program))
        finally:
            if options.keep:
                print(f"   kept: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
        verdict = {0: "passed", None: "skipped"}.get(status, f"FAILED ({status})")
        print(f"== {boot.name}: {verdict} after {time.monotonic() - started:.1f} s", flush=True)
        failed += [boot.name] * (status not in (0, None))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
