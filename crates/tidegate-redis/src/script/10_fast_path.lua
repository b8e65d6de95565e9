-- == Fast path: check of one token bucket ======================================================================
--
-- Nearly every call is one of these. Values of other layouts, debts, grants and clocks that stepped back take the general
-- path.

if #KEYS == 1 and #ARGV == 3 and ARGV[1] == '1:check' then
  local cost, rule = ARGV[2], ARGV[3]
  cost = cost == '1' and 1 or tonumber(cost)
  if #rule == 25 and string.byte(rule) == 98 and cost and cost > 0 and cost <= 4294967295 and cost % 1 == 0 then
    local p, q, burst = struct.unpack('>xI8I8I8', rule)
    local value = redis.call('GET', KEYS[1])
    local elapsed, used = 0, 0
    if value then
      -- The layout number of another algorithm, in the top bits, makes an instant beyond END, so `elapsed` is negative.
      local since, part = END, 0
      if #value == 12 then
        since, part, used = struct.unpack('>I7BI4', value)
      elseif #value == 21 then
        since, part, used = struct.unpack('>I7I7I7', value)
      end
      elapsed = part < q and (now - since) * q - part or -1
    end
    local full = p * burst
    if elapsed >= 0 and used <= burst and full > 0 and q > 0 and now + full + q <= END then
      if elapsed >= used * p then -- the larger of the two products may be inexact, but it stays the larger
        elapsed, used = 0, 0
      else
        local rest = elapsed % p
        elapsed, used = rest, used - (elapsed - rest) / p
      end
      local taken = used + cost
      if taken <= burst then
        local part = -elapsed % q
        local since = now - (elapsed + part) / q
        if part < 256 and taken < 4294967296 then
          value = struct.pack('>I7BI4', since, part, taken)
        else
          value = struct.pack('>I7I7I7', since, part, taken)
        end
        local owed = taken * p - elapsed
        local reset = (owed + -owed % q) / q
        redis.call('SET', KEYS[1], value, 'PXAT', string.format('%d', (now + reset + 999) / 1000))
        return { now, 1, 0, burst - taken, 0, reset }
      end
      local remaining, reset = burst - used, math.ceil((used * p - elapsed) / q)
      if cost > burst then
        return { now, 1, 4, remaining, 0, reset }
      end
      return { now, 1, 2, remaining, math.ceil(((taken - burst) * p - elapsed) / q), reset }
    end
  end
end

-- == Fast path: check of 2 to 8 token buckets ==================================================================

local refused -- the reply, if one of the buckets refuses

if #KEYS > 1 and #KEYS <= 8 and #ARGV == 2 * #KEYS + 1 and ARGV[1] == '1:check' then
  local count, call, byte, pack, read = #KEYS, redis.call, string.byte, struct.pack, struct.unpack
  local values = call('MGET', unpack(KEYS))
  local reply = { now, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } -- sized for three rules, so that it rarely grows
  local plain = true -- whether this path can decide the call
  for i = 2, count do
    for j = 1, i - 1 do
      plain = plain and KEYS[i] ~= KEYS[j]
    end
  end
  local at = 0
  for i = 1, plain and count or 0 do
    at = at + 4
    local cost, rule, value = ARGV[2 * i], ARGV[2 * i + 1], values[i]
    cost = cost == '1' and 1 or tonumber(cost)
    plain = #rule == 25 and byte(rule) == 98 and cost and cost > 0 and cost <= 4294967295 and cost % 1 == 0
    if not plain then
      break
    end
    local p, q, burst = read('>xI8I8I8', rule)
    local full, elapsed, used = p * burst, 0, 0
    if value then
      local since, part = END, 0
      if #value == 12 then
        since, part, used = read('>I7BI4', value)
      elseif #value == 21 then
        since, part, used = read('>I7I7I7', value)
      end
      elapsed = part < q and (now - since) * q - part or -1
    end
    plain = elapsed >= 0 and full > 0 and q > 0 and now + full + q <= END and used <= burst
    if not plain then
      break
    end
    if elapsed >= used * p then
      elapsed, used = 0, 0
    else
      local rest = elapsed % p
      elapsed, used = rest, used - (elapsed - rest) / p
    end
    local taken, owed = used + cost, used * p - elapsed
    if taken <= burst then
      local part = -elapsed % q
      local since = now - (elapsed + part) / q
      if part < 256 and taken < 4294967296 then
        values[i] = pack('>I7BI4', since, part, taken)
      else
        values[i] = pack('>I7I7I7', since, part, taken)
      end
      -- Until it is known whether every rule allows the request, the slot of the wait holds what was owed before it.
      local reset = owed + cost * p
      reply[at - 1], reply[at], reply[at + 1], reply[at + 2] = 0, burst - taken, owed, (reset + -reset % q) / q
    else
      local never, wait = cost > burst, (taken - burst) * p - elapsed
      reply[at - 1], reply[at] = never and 4 or 2, burst - used
      reply[at + 1], reply[at + 2] = never and 0 or (wait + -wait % q) / q, (owed + -owed % q) / q
      refused = reply
    end
  end
  if plain then
    for at = 4 * count + 3, 14 do
      reply[at] = nil
    end
  end
  if plain and not refused then
    local format, remaining, reset = string.format, reply[4], reply[6]
    at = 0
    for i = 1, count do
      at = at + 4
      local left, back = reply[at], reply[at + 2]
      call('SET', KEYS[i], values[i], 'PXAT', format('%d', (now + back + 999) / 1000))
      reply[at + 1] = 0
      if left < remaining or (left == remaining and back > reset) then
        reply[2], remaining, reset = i, left, back
      end
    end
    return reply
  end
  refused = plain and refused
end
