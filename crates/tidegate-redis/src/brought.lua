-- # The script for limits that come with the call
--
-- Clients of redis-cell send the whole limit with each call, and expect its arithmetic. What is remembered of a key is
-- one instant, to the nanosecond: when it will owe nothing again. It is read by whatever limit comes next, so it is of
-- no rule, and a call is about one key. That is all there is to it, so it has a script of its own, and the one that
-- decides by rules is none the longer for it. WIRE.md says what is sent and answered; `tidegate-server` has the same
-- arithmetic in Rust, in `engine/throttle.rs`, and a test walks both through the same steps.
--
--   now + full ┤─ ─ ─ ─ ─ ─ ─ ─   the line: a call that would push the instant past it is refused
--              │      ┌──┐
--   owes until │   ┌──┘  └────    the charge; below zero it pulls the instant back, to now at most
--          now ┼───┘───────► t
--
-- Numbers here are doubles, exact for whole numbers below 2^53, and nanoseconds since 1970 are more. So every time is
-- two numbers: whole microseconds, and the nanoseconds beyond them, from 0 to 999. Of a time below zero the first is
-- below zero and the second is not. In the string one stands behind the other, which is the number of nanoseconds in
-- digits, as redis-cell writes it, and which Redis keeps as an integer.

local KEYS, ARGV = KEYS, ARGV -- a local name is cheaper than a global one
local END = 9007199254740991 -- the end of the time line, 2^53 - 1

local verb, terms = ARGV[1], ARGV[2]
if #KEYS ~= 1 or not (verb == 'c' and #ARGV == 2 and #terms == 32 or verb == 'x' and #ARGV == 1) then
  return redis.error_reply(string.format('ERR tidegate: %d keys and %d arguments; expected one key, and as ' ..
    'arguments c and 32 bytes of numbers, or x', #KEYS, #ARGV))
end

local full, full_ns, charge, charge_ns = 0, 0, 0, 0
if terms then
  full, full_ns, charge, charge_ns = struct.unpack('>I8I8i8I8', terms)
  if full > END or charge > END or charge < -END or full_ns > 999 or charge_ns > 999 then
    return redis.error_reply(string.format('ERR tidegate: full %.0f and %.0f, charge %.0f and %.0f; expected ' ..
      'microseconds below 2^53, and nanoseconds below 1000', full, full_ns, charge, charge_ns))
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local value = redis.call('GET', KEYS[1])
local owes, owes_ns = now, 0
if value then
  local micros, nanos = string.match(value, '^(%d+)(%d%d%d)$')
  micros = tonumber(micros)
  if not micros or micros > END then
    return redis.error_reply(string.format('ERR tidegate: the key holds %d bytes of something else; expected what ' ..
      'this script has written there', #value))
  end
  if micros >= now then -- an instant that has passed is none
    owes, owes_ns = micros, tonumber(nanos)
  end
end

if verb == 'x' then
  if value then
    redis.call('DEL', KEYS[1])
  end
  return { now, 0, 0, owes - now, owes_ns }
end

-- The line may come to more than 2^53, and so may what is due: then they are not exact, but still beyond the end.
local line, line_ns = now + full, full_ns
if line >= END then
  line, line_ns = END, 0
end
local due, due_ns = owes + charge, owes_ns + charge_ns
if due_ns > 999 then
  due, due_ns = due + 1, due_ns - 1000
end

if due < line or due == line and due_ns <= line_ns then
  if due < now then
    due, due_ns = now, 0
  end
  local charges = charge ~= 0 or charge_ns ~= 0
  if charges and (due > now or due_ns > 0) then
    local idle_at, format = due_ns > 0 and due + 1 or due, string.format
    redis.call('SET', KEYS[1], format('%d%03d', due, due_ns), 'PXAT', format('%d', (idle_at + 999) / 1000))
  elseif charges and value then
    redis.call('DEL', KEYS[1])
  end
  return { now, 0, 0, due - now, due_ns }
end

if charge > full or charge == full and charge_ns > full_ns then
  return { now, 4, 0, owes - now, owes_ns }
end
-- In this order each step is below 2^53, for the charge is not more than lies between now and the line.
local wait = owes - line + charge + math.floor((owes_ns + charge_ns - line_ns) / 1000)
return { now, 2, wait, owes - now, owes_ns }
