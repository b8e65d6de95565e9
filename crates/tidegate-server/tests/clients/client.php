<?php
// phpredis against a Tidegate server: the table of CL.THROTTLE, long pipelines, transactions, places.

function expect(string $what, mixed $got, mixed $want): void
{
    if ($got !== $want) {
        throw new Exception("$what: got " . json_encode($got) . ', want ' . json_encode($want));
    }
}

/** The same, but for seconds that have passed. */
function fits(string $got, string $want): bool
{
    if ($want[0] !== '~') {
        return $got === $want;
    }
    $most = (int) substr($want, 1);
    return $most - 60 <= (int) $got && (int) $got <= $most;
}

function fitsAll(string $got, string $want): bool
{
    if (str_starts_with($got, 'ERR') || str_starts_with($want, 'ERR')) {
        return $got === $want;
    }
    $pairs = array_map(null, explode(' ', $got), explode(' ', $want));
    return array_reduce($pairs, fn ($all, $pair) => $all && !in_array(null, $pair, true) && fits(...$pair), true);
}

function throttle(Redis $redis, string ...$words): string
{
    $redis->clearLastError();
    $reply = $redis->rawCommand('CL.THROTTLE', ...$words);
    return $reply === false ? $redis->getLastError() : implode(' ', $reply);
}

/** What is sent, and what comes back. */
function table(Redis $redis, string $path): void
{
    foreach (file($path, FILE_IGNORE_NEW_LINES) as $line) {
        if ($line[0] === '#') {
            continue;
        }
        [$sent, $want] = array_map('trim', explode('->', $line));
        $words = preg_split('/\s+/', "php:table:$sent");
        $got = throttle($redis, ...$words);
        if (!fitsAll($got, $want)) {
            throw new Exception("CL.THROTTLE $sent: got $got, want $want");
        }
    }
}

$redis = new Redis();
$redis->connect($argv[1], (int) $argv[2]);
expect('auth', $redis->auth(['alice', 'wonder']), true);
expect('select', $redis->select(0), true);
table($redis, $argv[3]);
expect('any bytes', throttle($redis, "php:\xff\x00", '0', '1', '3600'), '0 1 0 -1 3600');
expect('throttle', $redis->rawCommand('CL.THROTTLE', 'php:first', 15, 30, 60, 1), [0, 16, 15, -1, 2]);

foreach ([Redis::PIPELINE, Redis::MULTI] as $mode) {
    $pipe = $redis->multi($mode);
    for ($i = 0; $i < 1000; $i++) {
        $pipe->rawCommand('CL.THROTTLE', "php:many$mode", 499, 1, 3600);
    }
    $replies = $pipe->exec();
    expect('replies', count($replies), 1000);
    expect('passed', count(array_filter($replies, fn ($reply) => $reply[0] === 0)), 500);
}

$pipe = $redis->multi(Redis::PIPELINE);
for ($i = 0; $i < 1000; $i++) {
    $pipe->rawCommand('CL.THROTTLE', 'php:fast', 0, 1001, 1);
}
$passed = count(array_filter($pipe->exec(), fn ($reply) => $reply[0] === 0));
expect('not all below a millisecond', $passed < 1000, true);

expect('exists', $redis->exists('php:first', 'php:none'), 1);
expect('deleted', $redis->del('php:first', 'php:none'), 1);
$acquired = $redis->rawCommand('TG.ACQUIRE', 'at work', 'php');
expect('acquired', $acquired[1], 'allowed');
expect('released', $redis->rawCommand('TG.RELEASE', $acquired[8]), 1);
expect('error', $redis->rawCommand('TG.CHECK', 'nobody', 'k'), false);
expect('sentence', $redis->getLastError(), "ERR there is no rule 'nobody'; the configuration has the names");
echo "fine\n";
