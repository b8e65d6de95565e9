<?php
// phpredis against a Tidegate server: CL.THROTTLE, long pipelines, transactions, places.

function expect(string $what, mixed $got, mixed $want): void
{
    if ($got !== $want) {
        throw new Exception("$what: got " . json_encode($got) . ', want ' . json_encode($want));
    }
}

$redis = new Redis();
$redis->connect($argv[1], (int) $argv[2]);
expect('auth', $redis->auth(['alice', 'wonder']), true);
expect('select', $redis->select(0), true);
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

expect('exists', $redis->exists('php:first', 'php:none'), 1);
expect('deleted', $redis->del('php:first', 'php:none'), 1);
$acquired = $redis->rawCommand('TG.ACQUIRE', 'at work', 'php');
expect('acquired', $acquired[1], 'allowed');
expect('released', $redis->rawCommand('TG.RELEASE', $acquired[8]), 1);
expect('error', $redis->rawCommand('TG.CHECK', 'nobody', 'k'), false);
expect('sentence', $redis->getLastError(), "ERR there is no rule 'nobody'; the configuration has the names");
echo "fine\n";
