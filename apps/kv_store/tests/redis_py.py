"""A server, asked by redis-py as programs do: python redis_py.py PORT, once by each protocol."""

import sys
import threading
import time

import redis


def refused(ask, expected):
    try:
        ask()
    except redis.ResponseError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(f"{expected!r} was expected")


def connection(r):
    assert r.ping() is True
    assert r.echo("words with blanks") == b"words with blanks"
    assert r.execute_command("SELECT", 0) in (True, b"OK", "OK")
    refused(lambda: r.execute_command("SELECT", 1), "DB index is out of range")
    refused(lambda: r.execute_command("NONSENSE"), "unknown command")


def values(r):
    assert r.flushall() is True
    assert r.set("a", "1") is True
    assert r.get("a") == b"1"
    assert r.get("none") is None
    assert r.set("a", "2", nx=True) is None
    assert r.incr("a") == 2 and r.incrby("a", 40) == 42 and r.decr("a") == 41 and r.decrby("a", 2) == 39
    assert r.set("a", "39xyz") is True
    refused(lambda: r.incr("a"), "not an integer")
    assert r.mset({"b": "x", "c": "y"}) is True
    assert r.mget("a", "none", "c") == [b"39xyz", None, b"y"]
    assert r.type("a") == b"string" and r.type("none") == b"none"
    assert r.exists("a", "b", "none") == 2
    assert r.delete("b", "none") == 1 and r.unlink("c") == 1
    assert r.dbsize() == 1
    big = bytes(range(256)) * 10_000
    r.set(b"\x00\xff", big)
    assert r.get(b"\x00\xff") == big


def expiry(r):
    r.set("e", "1")
    assert r.ttl("e") == -1 and r.ttl("none") == -2
    assert r.expire("e", 10_000) and 9_000 <= r.ttl("e") <= 10_000
    assert r.set("e", "2", px=50_000) and 0 < r.pttl("e") <= 50_000
    assert r.incr("e") == 3 and r.ttl("e") > 0
    assert r.persist("e") and not r.persist("e") and r.ttl("e") == -1
    assert r.pexpire("e", 30)
    while r.get("e") is not None:
        time.sleep(0.005)
    assert not r.expire("e", 10)
    r.set("e", "1")
    assert r.expire("e", -1) and r.exists("e") == 0


def scanning(r):
    r.flushdb()
    stays = {f"stays:{i}".encode() for i in range(3000)}
    for key in stays:
        r.set(key, "")
    stop = threading.Event()

    def churn():
        with redis.Redis(port=int(sys.argv[1])) as other:
            number = 0
            while not stop.is_set():
                number += 1
                other.mset({f"goes:{number}:{i}": "" for i in range(20)})
                other.delete(*(f"goes:{number - 5}:{i}" for i in range(15)))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(5):
            assert stays <= set(r.scan_iter())
        assert stays <= set(r.scan_iter(match="stays:*", count=100))
        assert set(r.scan_iter(match="stays:1?", count=100)) == {f"stays:{i}".encode() for i in range(10, 20)}
    finally:
        stop.set()
        thread.join()
    assert set(r.keys("stays:*")) == stays
    assert len(r.keys()) == r.dbsize()
    assert r.keys("stays:[12]") in ([b"stays:1", b"stays:2"], [b"stays:2", b"stays:1"])
    assert set(r.scan_iter(_type="string")) == set(r.keys()) and not list(r.scan_iter(_type="list"))
    refused(lambda: r.execute_command("SCAN", "x"), "invalid cursor")
    refused(lambda: r.execute_command("SCAN", 0, "COUNT", 0), "syntax error")


def transactions(r):
    with r.pipeline() as pipe:
        pipe.set("t", 1).incr("t").get("t")
        assert pipe.execute() == [True, 2, b"2"]
        pipe.set("t", "x").incr("t").get("t")
        results = pipe.execute(raise_on_error=False)
        assert results[0] is True and results[2] == b"x"
        assert "not an integer" in str(results[1])
        pipe.set("t", "y").execute_command("NONSENSE")
        refused(pipe.execute, "unknown command")
    assert r.get("t") == b"x"
    with redis.Redis(port=int(sys.argv[1])) as other:
        r.execute_command("MULTI")
        r.execute_command("SET", "t", "z")
        assert other.get("t") == b"x"
        refused(lambda: r.execute_command("MULTI"), "nested")
        assert r.execute_command("DISCARD") in (True, b"OK", "OK")
    for wrong in ("EXEC", "DISCARD"):
        refused(lambda: r.execute_command(wrong), "without MULTI")
    assert r.get("t") == b"x"


def server(r):
    assert r.config_get("*")["appendonly"] == "no" and not r.config_get("none")
    refused(lambda: r.config_set("appendonly", "yes"), "unknown subcommand or setting")
    assert r.bgsave() is not None
    while r.info()["rdb_bgsave_in_progress"]:
        time.sleep(0.01)
    assert r.info()["rdb_last_bgsave_status"] == "ok"
    assert r.save() is True and r.lastsave().year >= 2023
    pipe = r.pipeline(transaction=False)
    pipe.set("p", 1).incr("p").get("p")
    assert pipe.execute() == [True, 2, b"2"]


for protocol in (2, 3):
    with redis.Redis(port=int(sys.argv[1]), protocol=protocol) as r:
        connection(r)
        values(r)
        expiry(r)
        scanning(r)
        transactions(r)
        server(r)
with redis.Redis(port=int(sys.argv[1])) as r:
    assert r.ping() is True
print("answered")
