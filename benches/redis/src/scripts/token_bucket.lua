-- The script most programs have: a hash of tokens and when they were counted. Rate per second, burst, cost.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'counted')
local tokens, counted = tonumber(kept[1]) or burst, tonumber(kept[2]) or now
tokens = math.min(burst, tokens + (now - counted) * rate / 1000000)
local allowed = tokens >= cost and 1 or 0
tokens = tokens - allowed * cost
redis.call('HSET', KEYS[1], 'tokens', tokens, 'counted', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return {allowed, math.floor(tokens)}
