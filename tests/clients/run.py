#!/usr/bin/env python3
"""Runs suites of Redis and of Python's caches against a node and against redis-server, and prints what passed.

Input: the program of the node, and a folder for sources that are fetched once. Output: a line for each suite with the
numbers of passed and failed tests of both servers; exit status 0 if no test of the node failed. Tests that need what a
node does not have are in `skipped`, each below the reason; redis-server runs them too.
"""

import argparse
import glob
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
UNITS = [
    "unit/type/string", "unit/type/incr", "unit/bitops", "unit/bitfield", "unit/multi", "unit/keyspace", "unit/expire",
    "unit/scan", "unit/protocol", "unit/introspection", "unit/introspection-2",
]
PACKAGES = ["redis", "django<5.3", "dogpile.cache", "flask-caching", "mako", "pytest", "pytest-mock", "pytest-xprocess"]
# The suites are in the source packages only.
SOURCES = ["django<5.3", "dogpile.cache", "flask-caching"]
DJANGO_SETTINGS = """
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "other")}
SECRET_KEY = "x"
USE_TZ = False
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:%d"}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port):
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing answers on port {port}")


def start_servers(program, folder):
    """Starts redis-server and a node; returns the processes and the ports."""
    ports = {"redis": free_port(), "node": free_port()}
    redis = ["redis-server", "--port", str(ports["redis"]), "--save", "", "--appendonly", "no", "--dir", folder]
    node = [program, "serve", "--data", f"{folder}/data", "--capacity", "512MiB", "--durability", "on-flush"]
    node += ["--resp", f"127.0.0.1:{ports['node']}", "--metrics", "127.0.0.1:0"]
    processes = []
    for command in (redis + ["--enable-debug-command", "yes"], node):
        with open(f"{folder}/{os.path.basename(command[0])}.log", "w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
    for port in ports.values():
        wait_for(port)
    return processes, ports


def output_of(command, folder, environment=None, seconds=600):
    """Runs a suite to its end, or for this many seconds; returns what it printed."""
    try:
        done = subprocess.run(command, cwd=folder, env={**os.environ, **(environment or {})}, timeout=seconds,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + f"\n[err]: not finished after {seconds} s in this suite\n"


def run_tcl(source, unit, port, skipped):
    command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(port), "--single", unit]
    command += ["--durable", "--ignore-encoding", "--ignore-digest", "--clients", "1"]
    text = output_of(command + (["--skipfile", skipped] if skipped else []), source)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    failed = re.findall(r"^\[(?:err|exception)\]: (.*?)(?: in tests/unit.*)?$", text, re.M)
    return len(re.findall(r"^\[ok\]", text, re.M)), failed


def run_pytest(python, folder, arguments, environment):
    text = output_of([python, "-m", "pytest", "-q", "-rfE"] + arguments, folder, environment)
    passed = re.findall(r"(\d+) passed", text)
    failed = re.findall(r"^(?:FAILED|ERROR|\[err\]:) (\S+)", text, re.M)
    return int(passed[-1]) if passed else 0, failed if passed else failed or [text[-2000:]]


def run_django(python, folder, port, scratch):
    with open(f"{scratch}/cache_settings.py", "w") as settings:
        settings.write(DJANGO_SETTINGS % port)
    command = [python, "runtests.py", "--settings", "cache_settings", "--parallel", "1", "cache.tests.RedisCacheTests"]
    text = output_of(command, f"{folder}/tests", {"PYTHONPATH": scratch})
    ran = re.findall(r"^Ran (\d+) tests", text, re.M)
    failed = re.findall(r"^(?:FAIL|ERROR): (\S+)", text, re.M)
    skipped = re.findall(r"skipped=(\d+)", text)
    passed = int(ran[-1]) - len(failed) - int(skipped[-1] if skipped else 0) if ran else 0
    return passed, failed if ran else [text[-2000:]]


def run_dogpile(python, folder, port, is_node):
    # A distributed lock is released by a script.
    chosen = ["-k", "not Mutex and not distributed"] if is_node else []
    arguments = chosen + ["tests/cache/test_redis_backend.py"]
    return run_pytest(python, folder, arguments, {"DOGPILE_REDIS_PORT": str(port)})


def run_flask_caching(python, folder, port):
    """Runs the suite against a port; it names its own port in two files, and starts a server itself."""
    for name in ("conftest.py", "test_backend_cache.py"):
        with open(f"{folder}/tests/{name}") as file:
            text = file.read()
        text = text.replace('yield from _ensure_server(xprocess, package_name, "redis-server", 6360, Starter)', "yield")
        text = re.sub(r"port=\d+", f"port={port}", text)
        with open(f"{folder}/tests/{name}", "w") as file:
            file.write(text)
    return run_pytest(python, folder, ["-k", "TestRedisCache and not Override", "tests/test_backend_cache.py"], {})


def fetch_python(folder):
    """Installs the caches and unpacks their sources; returns Python and the folders, or None without a registry."""
    python = f"{folder}/venv/bin/python"
    sources = f"{folder}/sources"
    if not os.path.exists(f"{folder}/done"):
        os.makedirs(sources, exist_ok=True)
        pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
        steps = [
            [sys.executable, "-m", "venv", f"{folder}/venv"],
            pip + ["install"] + PACKAGES,
            pip + ["download", "--no-deps", "--no-binary", ":all:", "-d", sources] + SOURCES,
        ]
        if any(subprocess.run(step).returncode for step in steps):
            return None
        for archive in glob.glob(f"{sources}/*.tar.gz"):
            subprocess.run(["tar", "xzf", archive, "-C", sources], check=True)
        open(f"{folder}/done", "w").close()
    found = {name: sorted(glob.glob(f"{sources}/{name}-*/")) for name in ("django", "dogpile_cache", "flask_caching")}
    return (python, {name: folders[0] for name, folders in found.items()}) if all(found.values()) else None


def suites(options, ports, scratch):
    """Yields the name of each suite and a function of the server that runs it."""
    chosen = [unit for unit in UNITS if not options.suites or unit in options.suites]
    if chosen:
        source = subprocess.run([f"{HERE}/source", f"{options.cache}/redis"], stdout=subprocess.PIPE, check=True)
        source = source.stdout.decode().strip()
    for unit in chosen:
        skipped = {"redis": None, "node": f"{HERE}/skipped"}
        yield unit, lambda server, unit=unit: run_tcl(source, unit, ports[server], skipped[server])
    if options.suites and not {"django", "dogpile", "flask-caching"} & set(options.suites):
        return
    fetched = fetch_python(f"{options.cache}/python")
    if not fetched:
        print("skipped: the suites of Python's caches cannot be had from the package registry")
        return
    python, folders = fetched
    of_python = {
        "django": lambda server: run_django(python, folders["django"], ports[server], scratch),
        "dogpile": lambda server: run_dogpile(python, folders["dogpile_cache"], ports[server], server == "node"),
        "flask-caching": lambda server: run_flask_caching(python, folders["flask_caching"], ports[server]),
    }
    for name, run in of_python.items():
        if not options.suites or name in options.suites:
            yield name, run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(HERE, "../../target"))
    parser.add_argument("--cache", default=os.path.join(target, "clients"))
    parser.add_argument("--program", default=os.path.join(target, "debug/headwater"))
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("suites", nargs="*", help="unit/multi, django, ...; by default all")
    options = parser.parse_args()
    options.cache = os.path.abspath(options.cache)
    os.makedirs(f"{options.cache}/python", exist_ok=True)
    results = {}
    with tempfile.TemporaryDirectory(prefix="headwater-clients-") as scratch:
        processes, ports = start_servers(os.path.abspath(options.program), scratch)
        try:
            print(f"{'suite':<24}{'redis-server':>20}{'node':>20}")
            for name, run in suites(options, ports, scratch):
                results[name] = {server: run(server) for server in ("redis", "node")}
                shown = [f"{passed} passed, {len(failed)} failed" for passed, failed in results[name].values()]
                print(f"{name:<24}{shown[0]:>20}{shown[1]:>20}", flush=True)
                for test in results[name]["node"][1]:
                    print(f"  failed: {test}", flush=True)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    if options.json:
        print(json.dumps(results))
    none_ran = not results or any(passed == 0 for result in results.values() for passed, _ in result.values())
    return 1 if none_ran or any(result["node"][1] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
