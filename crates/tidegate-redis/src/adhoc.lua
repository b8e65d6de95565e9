-- Tidegate: the Redis script for ad-hoc limits. Wire version 1.
--
-- Clients of redis-cell send the whole limit with each call (CL.THROTTLE) and expect its arithmetic. The state of a key is one
-- instant in nanoseconds: when nothing is owed any more. Whatever limit comes with the next call reads it, so the key belongs to
-- no rule, and a call has one key. This is a script of its own so that the one for rules is not longer for it. WIRE.md describes
-- arguments and replies. `tidegate-server` has the same arithmetic in Rust, and a test runs both through the same steps.
--
--   now + full ┤─ ─ ─ ─ ─ ─ ─ ─   a call that would move the instant past this line is refused
--              │      ┌──┐
--   owed until │   ┌──┘  └────    a charge moves it up; a negative charge moves it down, at most to now
--          now ┼───┘───────► t
--
-- Numbers are doubles, exact for integers below 2^53, and nanoseconds since 1970 are more. So every time is two numbers: whole
-- microseconds, and the nanoseconds beyond them, from 0 to 999. In a negative time only the microseconds are negative. The value
-- has the digits of both one after the other: this is the number of nanoseconds, as redis-cell writes it, and Redis stores it
-- as an integer.

local KEYS, ARGV = KEYS, ARGV -- a local is cheaper than a global
local END = 9007199254740991 -- the last instant, 2^53 - 1

local operation, terms = ARGV[1], ARGV[2]
if operation and string.sub(operation, 1, 2) ~= '1:' then -- another version may have other arguments
  return redis.error_reply('ERR tidegate: operation without wire version 1; expected 1:charge or 1:forget')
end
if #KEYS ~= 1 or
    not (operation == '1:charge' and #ARGV == 2 and #terms == 32 or operation == '1:forget' and #ARGV == 1) then
  return redis.error_reply(string.format('ERR tidegate: %d keys and %d arguments; expected one key, and as ' ..
    'arguments 1:charge and 32 bytes of numbers, or 1:forget', #KEYS, #ARGV))
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
    return redis.error_reply(string.format('ERR tidegate: the key holds %d bytes of unknown content; expected a ' ..
      'value written by this script', #value))
  end
  if micros >= now then -- an instant in the past means that nothing is owed
    owes, owes_ns = micros, tonumber(nanos)
  end
end

if operation == '1:forget' then
  if value then
    redis.call('DEL', KEYS[1])
  end
  return { now, 0, 0, owes - now, owes_ns }
end

-- `line` and `due` may exceed 2^53. Then they are inexact, but still beyond the last instant.
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
-- In this order every intermediate result is below 2^53, because the charge is at most line - now.
local wait = owes - line + charge + math.floor((owes_ns + charge_ns - line_ns) / 1000)
return { now, 2, wait, owes - now, owes_ns }
