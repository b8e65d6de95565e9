-- The least a script can do: one instant, one comparison. Interval and tolerance in microseconds.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local until_then = math.max(tonumber(redis.call('GET', KEYS[1])) or 0, now)
local wait = until_then - now - tolerance
if wait > 0 then
  return {0, wait}
end
redis.call('SET', KEYS[1], until_then + interval, 'PX', math.ceil((until_then + interval - now) / 1000) + 1)
return {1, 0}
