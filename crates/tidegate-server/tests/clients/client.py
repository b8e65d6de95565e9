"""redis-py against a Tidegate server: both dialects, the table of CL.THROTTLE, long pipelines, transactions, places."""

import sys

import redis

HOST, PORT, TABLE = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def expect(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def rows():
    for line in open(TABLE):
        if not line.startswith("#"):
            words, reply = line.strip().split("->")
            yield words.split(), reply.strip()


def fits(got, want):
    if want.startswith("~"):
        return int(want[1:]) - 60 <= int(got) <= int(want[1:])
    return got == want


def throttle(client, prefix, words):
    try:
        return " ".join(str(n) for n in client.execute_command("CL.THROTTLE", prefix + words[0], *words[1:]))
    except redis.ResponseError as error:
        # redis-py takes the code off the errors that it knows.
        text = str(error)
        return text if text.startswith("ERR ") else "ERR " + text


def table(client, prefix):
    for words, want in rows():
        got = throttle(client, prefix, words)
        same = got == want if want.startswith("ERR") else all(map(fits, got.split(), want.split())) and got[:3] != "ERR"
        assert same, f"CL.THROTTLE {' '.join(words)}: got {got}, want {want}"


def pipelines(client, prefix):
    for transaction in (False, True):
        pipeline = client.pipeline(transaction=transaction)
        for _ in range(1000):
            pipeline.execute_command("CL.THROTTLE", f"{prefix}many{transaction}", 499, 1, 3600)
        expect("passed of 1000", sum(reply[0] == 0 for reply in pipeline.execute()), 500)
    pipeline = client.pipeline(transaction=False)
    for _ in range(1000):
        pipeline.execute_command("CL.THROTTLE", prefix + "fast", 0, 1001, 1)
    passed = sum(reply[0] == 0 for reply in pipeline.execute())
    expect("not all below a millisecond", passed < 1000, True)


def talk(protocol):
    prefix = f"py{protocol}:"
    client = redis.Redis(HOST, PORT, username="alice", password="wonder", protocol=protocol, client_name="py")
    expect("ping", client.ping(), True)
    expect("name", client.client_getname() in ("py", b"py"), True)
    table(client, prefix)
    pipelines(client, prefix)
    expect("any bytes", client.execute_command("CL.THROTTLE", prefix.encode() + b"\xff\x00", 1, 1, 3600)[0], 0)
    client.execute_command("CL.THROTTLE", prefix + "gone", 0, 1, 3600)
    expect("exists", client.exists(prefix + "gone", prefix + "absent"), 1)
    expect("ttl", 3540 <= client.ttl(prefix + "gone") <= 3600, True)
    expect("deleted", client.delete(prefix + "gone", prefix + "absent"), 1)
    expect("fresh again", client.execute_command("CL.THROTTLE", prefix + "gone", 0, 1, 3600)[0], 0)
    checked = client.execute_command("TG.CHECK", "user", prefix + "a", "COST", 20)
    expect("checked", checked[:1] + checked[3:5], [1, 20, 0])
    acquired = client.execute_command("TG.ACQUIRE", "at work", prefix + "w")
    expect("renewed", client.execute_command("TG.RENEW", acquired[8]), 30_000_000)
    expect("released", client.execute_command("TG.RELEASE", acquired[8]), 1)
    expect("info", client.info()["redis_mode"], "standalone")


def strangers():
    try:
        redis.Redis(HOST, PORT, username="alice", password="wrong").ping()
    except redis.AuthenticationError:
        return
    raise AssertionError("a wrong password was accepted")


for dialect in (2, 3):
    talk(dialect)
strangers()
print("fine")
