-- The script before wire version 1, without its comments: operations are single letters, and keys begin with `tg:{`. A fixture
-- for the tests of rolling upgrades; never changed.

local KEYS, ARGV = KEYS, ARGV
local END = 9007199254740991
local LONGEST_LEASE = 3600000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if #KEYS == 1 and #ARGV == 3 and ARGV[1] == 'c' then
  local cost, rule = ARGV[2], ARGV[3]
  cost = cost == '1' and 1 or tonumber(cost)
  if #rule == 25 and string.byte(rule) == 98 and cost and cost > 0 and cost <= 4294967295 and cost % 1 == 0 then
    local p, q, burst = struct.unpack('>xI8I8I8', rule)
    local value = redis.call('GET', KEYS[1])
    local gone, used = 0, 0
    if value then
      local since, part = END, 0
      if #value == 12 then
        since, part, used = struct.unpack('>I7BI4', value)
      elseif #value == 21 then
        since, part, used = struct.unpack('>I7I7I7', value)
      end
      gone = part < q and (now - since) * q - part or -1
    end
    local full = p * burst
    if gone >= 0 and used <= burst and full > 0 and q > 0 and now + full + q <= END then
      if gone >= used * p then
        gone, used = 0, 0
      else
        local rest = gone % p
        gone, used = rest, used - (gone - rest) / p
      end
      local taken = used + cost
      if taken <= burst then
        local part = -gone % q
        local since = now - (gone + part) / q
        if part < 256 and taken < 4294967296 then
          value = struct.pack('>I7BI4', since, part, taken)
        else
          value = struct.pack('>I7I7I7', since, part, taken)
        end
        local owes = taken * p - gone
        local reset = (owes + -owes % q) / q
        redis.call('SET', KEYS[1], value, 'PXAT', string.format('%d', (now + reset + 999) / 1000))
        return { now, 1, 0, burst - taken, 0, reset }
      end
      local remaining, reset = burst - used, math.ceil((used * p - gone) / q)
      if cost > burst then
        return { now, 1, 4, remaining, 0, reset }
      end
      return { now, 1, 2, remaining, math.ceil(((taken - burst) * p - gone) / q), reset }
    end
  end
end

local refused

if #KEYS > 1 and #KEYS <= 8 and #ARGV == 2 * #KEYS + 1 and ARGV[1] == 'c' then
  local count, call, byte, pack, read = #KEYS, redis.call, string.byte, struct.pack, struct.unpack
  local values = call('MGET', unpack(KEYS))
  local reply = { now, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
  local plain = true
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
    local full, gone, used = p * burst, 0, 0
    if value then
      local since, part = END, 0
      if #value == 12 then
        since, part, used = read('>I7BI4', value)
      elseif #value == 21 then
        since, part, used = read('>I7I7I7', value)
      end
      gone = part < q and (now - since) * q - part or -1
    end
    plain = gone >= 0 and full > 0 and q > 0 and now + full + q <= END and used <= burst
    if not plain then
      break
    end
    if gone >= used * p then
      gone, used = 0, 0
    else
      local rest = gone % p
      gone, used = rest, used - (gone - rest) / p
    end
    local taken, owes = used + cost, used * p - gone
    if taken <= burst then
      local part = -gone % q
      local since = now - (gone + part) / q
      if part < 256 and taken < 4294967296 then
        values[i] = pack('>I7BI4', since, part, taken)
      else
        values[i] = pack('>I7I7I7', since, part, taken)
      end
      local reset = owes + cost * p
      reply[at - 1], reply[at], reply[at + 1], reply[at + 2] = 0, burst - taken, owes, (reset + -reset % q) / q
    else
      local never, wait = cost > burst, (taken - burst) * p - gone
      reply[at - 1], reply[at] = never and 4 or 2, burst - used
      reply[at + 1], reply[at + 2] = never and 0 or (wait + -wait % q) / q, (owes + -owes % q) / q
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

local function binding(reply)
  local strictest, outcome, remaining, wait, reset = 1, reply[3], reply[4], reply[5], reply[6]
  for i = 2, #KEYS do
    local at = 4 * i
    local by_outcome, by_wait = reply[at - 1] - outcome, reply[at + 1] - wait
    local by_remaining, by_reset = remaining - reply[at], reply[at + 2] - reset
    if by_outcome > 0 or (by_outcome == 0 and (by_wait > 0 or (by_wait == 0 and
        (by_remaining > 0 or (by_remaining == 0 and by_reset > 0))))) then
      strictest, outcome, remaining, wait, reset = i, reply[at - 1], reply[at], reply[at + 1], reply[at + 2]
    end
  end
  return strictest
end

if refused then
  for i = 1, #KEYS do
    local at = 4 * i
    if refused[at - 1] == 0 then
      local _, q = struct.unpack('>xI8I8', ARGV[2 * i + 1])
      refused[at], refused[at + 1], refused[at + 2] = refused[at] + ARGV[2 * i], 0, math.ceil(refused[at + 1] / q)
    end
  end
  refused[2] = binding(refused)
  return refused
end

local ALLOWED, AFTER, RETRY, BUSY, NEVER = 0, 1, 2, 3, 4

local function at_least_zero(number)
  return number > 0 and number or 0
end

local function instant(micros)
  return micros < END and micros or END
end

local function remember(key, value, idle_at)
  redis.call('SET', key, value, 'PXAT', string.format('%d', (idle_at + 999) / 1000))
end

local function bucket()
  local HEAD, STEPPED, GRANT, NONE = 21, 35, 27, {}
  local RESERVED, HIGH = 128, 2 ^ 48

  local function head_of(value)
    return #value % GRANT == STEPPED % GRANT and STEPPED or HEAD
  end

  local function value_of(used, gone, p, q, in_full)
    local part = -gone % q
    local since = now - (gone + part) / q
    if since < 0 then
      part = (p - gone) % q
      since, used = now + (p - gone - part) / q, used - 1
    end
    if part < 256 and used < 4294967296 and not in_full then
      return struct.pack('>I7BI4', since, part, used)
    end
    return struct.pack('>I7I7I7', since, part, used)
  end

  local function tokens(value, q, lost)
    local since, part, used
    if #value == 12 then
      since, part, used = struct.unpack('>I7BI4', value)
    else
      since, part, used = struct.unpack('>I7I7I7', value)
    end
    if part >= q then
      since, part = since + 1, 0
    end
    return used, (now - since - lost) * q - part, part > 0 and since + 1 or since
  end

  local function remembered(instant, q)
    local room, furthest = 2 ^ 22, END + 1
    while room < q do
      room, furthest = room * 2, furthest / 2
    end
    return math.min(instant, now + furthest - 1)
  end

  local function until_return(rule)
    return rule.high and rule.high - now or 0
  end

  local function told(rule, wait)
    local until_then = until_return(rule)
    return until_then > 0 and wait >= until_then and wait + until_then or wait
  end

  local function line(rule)
    return math.min(rule.full, (END - now) * rule.q)
  end

  local function lapse(rule, owes, live)
    local charged = math.floor(owes / rule.p) - live
    while rule.reserved > 0 and rule.reserved > charged do
      local oldest = rule.reservations[1]
      local cut = math.min(oldest.amount, rule.reserved - charged)
      oldest.amount, rule.reserved = oldest.amount - cut, rule.reserved - cut
      if oldest.amount == 0 then
        table.remove(rule.reservations, 1)
      end
    end
  end

  local function read_grants(rule, value, used, gone)
    local p, q, live, grants, reserved, reservations = rule.p, rule.q, 0, {}, 0, {}
    for at = head_of(value) + 1, #value, GRANT do
      local high, low, amount = struct.unpack('>BI6I4', value, at)
      local grant = { amount = amount, id = string.sub(value, at + 11, at + GRANT - 1) }
      grant.expires = high % RESERVED * HIGH + low
      if high < RESERVED then
        live, grants[#grants + 1] = live + amount, grant
      elseif grant.expires > now then
        reserved, reservations[#reservations + 1] = reserved + amount, grant
      end
    end
    rule.reserved, rule.reservations = reserved, reservations
    while grants[1] and grants[1].expires <= now do
      local since = (now - grants[1].expires) * q
      if gone - since >= (used - live) * p then
        used, gone = live, since
      end
      lapse(rule, used * p - (gone - since), live)
      live = live - table.remove(grants, 1).amount
    end
    rule.grants, rule.live = grants, live
    return used, gone
  end

  local function read(rule, value)
    rule.full = rule.full or rule.p * rule.burst
    rule.used, rule.gone, rule.grants, rule.live, rule.reservations, rule.reserved = 0, 0, NONE, 0, NONE, 0
    rule.early = 0
    if not value then
      return
    end
    local high, written = 0, 0
    if head_of(value) == STEPPED then
      high, written = struct.unpack('>I7I7', value, HEAD + 1)
    end
    local p, used, gone, since = rule.p, tokens(value, rule.q, now >= high and high - written or 0)
    if #value > HEAD then
      used, gone = read_grants(rule, value, used, gone)
    end
    if now < high then
      rule.high = remembered(high, rule.q)
    end
    if gone >= (used - rule.live) * p then
      rule.used, rule.reservations, rule.reserved = rule.live, NONE, 0
      return
    end
    rule.pulled = high > 0
    local back = math.floor(gone / p)
    rule.used, rule.gone, rule.early = used - back, gone - back * p, at_least_zero(-back)
    if gone < 0 and rule.used * p - rule.gone > line(rule) then
      rule.used, rule.gone, rule.early, rule.pulled = used, 0, 0, true
      rule.high = remembered(math.max(high, since), rule.q)
    elseif rule.early > 0 then
      rule.stepped, rule.lost = string.sub(value, HEAD + 1, head_of(value)), high - written
    end
    if rule.reserved > 0 then
      lapse(rule, rule.used * p - rule.gone, rule.live)
    end
  end

  local function owed(rule)
    return math.min(rule.used * rule.p - rule.gone, (END - now) * rule.q)
  end

  local function until_owed(rule, owes, bound)
    local live, at = rule.live * rule.p, 0
    for _, grant in ipairs(rule.grants) do
      local ends = (grant.expires - now) * rule.q
      if live <= bound and owes - bound <= ends - at then
        break
      end
      owes, at, live = math.max(owes - (ends - at), math.min(owes, live)), ends, live - grant.amount * rule.p
    end
    return at + owes - bound
  end

  local function level(rule, owes)
    local spare = rule.full % rule.p
    local reset = until_owed(rule, owes, spare)
    return at_least_zero(math.floor((rule.full - owes) / rule.p)), told(rule, at_least_zero(math.ceil(reset / rule.q)))
  end

  local function decision(rule, outcome, wait, owes)
    local remaining, reset = level(rule, owes)
    return outcome, remaining, wait, reset
  end

  local function with_turn(rule, owes)
    local wait = rule.free and math.ceil((owes - rule.free) / rule.q) or 0
    if wait > 0 then
      return decision(rule, AFTER, wait, owes)
    end
    return decision(rule, ALLOWED, 0, owes)
  end

  local function most(rule)
    return math.floor(rule.full / rule.p)
  end

  local function peek(rule, cost)
    local owes = owed(rule)
    if cost == 0 then
      return decision(rule, ALLOWED, 0, owes)
    end
    if cost > most(rule) then
      return decision(rule, NEVER, 0, owes)
    end
    local short = owes - (line(rule) - cost * rule.p)
    if short > 0 then
      local wait = until_owed(rule, owes, owes - short)
      return decision(rule, RETRY, told(rule, math.ceil(wait / rule.q)), owes)
    end
    return with_turn(rule, owes + cost * rule.p)
  end

  local function force(rule, cost)
    if cost == 0 then
      return decision(rule, ALLOWED, 0, owed(rule))
    end
    rule.used = math.min(rule.used + cost, math.max(rule.used, math.floor(END / rule.p)))
    return with_turn(rule, owed(rule))
  end

  local function refund(rule, cost)
    if rule.used <= rule.live then
      return false
    end
    rule.used = rule.used - cost
    if rule.used - rule.early <= rule.live then
      rule.used, rule.gone = rule.live, 0
    else
      rule.kept = rule.early
    end
    return true
  end

  local function give_back(rule, cost, til)
    if rule.used <= rule.live then
      return false
    end
    local back = math.min(cost * rule.p, (til - now - 1) * rule.q + 1)
    local owes = math.max(rule.used * rule.p - rule.gone - back, rule.live * rule.p)
    rule.used = math.ceil(owes / rule.p)
    rule.gone = rule.used * rule.p - owes
    return true
  end

  local function store(rule)
    if rule.used == 0 then
      return
    end
    local kept = rule.kept or 0
    local stepped = rule.high and struct.pack('>I7I7', rule.high, now) or ''
    local lost = until_return(rule)
    if kept > 0 then
      stepped, lost = rule.stepped, rule.lost
    end
    local in_full = #rule.grants + #rule.reservations > 0 or stepped ~= ''
    local value = { value_of(rule.used - kept, rule.gone - kept * rule.p, rule.p, rule.q, in_full), stepped }
    for _, grant in ipairs(rule.grants) do
      value[#value + 1] = struct.pack('>I7I4', grant.expires, grant.amount) .. grant.id
    end
    for _, grant in ipairs(rule.reservations) do
      local low = grant.expires % HIGH
      value[#value + 1] = struct.pack('>BI6I4', RESERVED + (grant.expires - low) / HIGH, low, grant.amount) .. grant.id
    end
    return table.concat(value), instant(now + math.ceil(until_owed(rule, owed(rule), 0) / rule.q) + lost)
  end

  local function used(value)
    return (tokens(value, 1, 0))
  end

  local function forget(rule, value)
    if value and #value > HEAD then
      read_grants(rule, value, 0, 0)
      rule.used, rule.reservations, rule.reserved = rule.live, NONE, 0
    end
  end

  local function take_reservation(rule, id)
    for i, reservation in ipairs(rule.reservations) do
      if reservation.id == id then
        rule.reserved = rule.reserved - reservation.amount
        return table.remove(rule.reservations, i)
      end
    end
  end

  local function shrink(rule, id, left, back)
    for i, grant in ipairs(rule.grants) do
      if grant.id == id and left < grant.amount then
        rule.live = rule.live - (grant.amount - left)
        rule.used = rule.used - math.min(back, grant.amount - left)
        grant.amount = left
        if left == 0 then
          table.remove(rule.grants, i)
        end
        return
      end
    end
  end

  local function insert(rule, grant)
    local at = #rule.grants + 1
    while at > 1 and rule.grants[at - 1].expires > grant.expires do
      at = at - 1
    end
    if rule.grants == NONE then
      rule.grants = {}
    end
    table.insert(rule.grants, at, grant)
    rule.live = rule.live + grant.amount
  end

  local function clamp(grants, latest)
    for _, grant in ipairs(grants) do
      grant.expires = math.min(grant.expires, latest)
    end
  end

  local function claim(rule, id, stock, ttl)
    local reservation = take_reservation(rule, id)
    if not reservation then
      return 0
    end
    local amount = reservation.amount
    local come_in = math.floor((line(rule) - (rule.used * rule.p - rule.gone)) / rule.p) + rule.reserved + amount
    local granted = at_least_zero(math.min(amount, come_in, stock - rule.live))
    rule.used = rule.used - (amount - granted)
    if granted > 0 then
      insert(rule, { expires = instant(now + ttl), amount = granted, id = id })
    end
    return granted
  end

  local function take_back(rule, id, unspent)
    local reservation = take_reservation(rule, id)
    if reservation then
      refund(rule, math.min(unspent, reservation.amount))
    else
      shrink(rule, id, 0, unspent)
    end
  end

  local function lease(rule, want, stock, ttl, id, ahead)
    local fills_in = math.ceil(rule.full / rule.q)
    clamp(rule.grants, now + LONGEST_LEASE)
    clamp(rule.reservations, now + LONGEST_LEASE + 2 * fills_in)
    local owes, at_most = owed(rule), line(rule)
    local there = at_least_zero(math.floor((at_most - owes) / rule.p))
    if there > 0 then
      local granted = math.min(want, there, stock - rule.live)
      if granted <= 0 then
        local first = rule.grants[1]
        return 0, 0, first and first.expires - now or 0
      end
      rule.used = rule.used + granted
      insert(rule, { expires = instant(now + ttl), amount = granted, id = id })
      return granted, 0, 0
    end
    local reserved = math.min(want, ahead, stock - rule.reserved)
    if reserved <= 0 then
      return 0, 0, math.ceil(until_owed(rule, owes, at_most - rule.p) / rule.q)
    end
    rule.used, rule.reserved = rule.used + reserved, rule.reserved + reserved
    local wait = math.ceil(at_least_zero(until_owed(rule, owed(rule), at_most)) / rule.q)
    if rule.reservations == NONE then
      rule.reservations = {}
    end
    table.insert(rule.reservations, { expires = instant(now + wait + ttl), amount = reserved, id = id })
    return 0, reserved, wait
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used,
    give_back = give_back, forget = forget, shrink = shrink, claim = claim, take_back = take_back, lease = lease,
  }
end

local function nginx_queue()
  local REQUEST, MILLI, FAR_BACK = 1000, 1000, 60000
  local millis = math.floor(now / MILLI)

  local function standing(rule)
    local passed = rule.far_back and 1 or at_least_zero(millis - rule.last)
    if passed == 0 then
      return rule.owed, rule.last
    end
    return at_least_zero(rule.owed - math.floor(rule.rate * passed / MILLI)), millis
  end

  local function read(rule, value)
    rule.owed, rule.last = 0, 0
    if value then
      rule.last, rule.owed = struct.unpack('>xI7I7', value)
    end
    rule.far_back = rule.last > millis + FAR_BACK
    if rule.far_back then
      rule.last, rule.pulled = millis, true
    end
  end

  local function leaked_at(rule, last, less)
    return instant((last + math.ceil(less * MILLI / rule.rate)) * MILLI)
  end

  local function turn(rule, owes)
    local excess = at_least_zero(at_least_zero(owes - REQUEST) - rule.delay)
    return math.floor(excess * MILLI / rule.rate) * MILLI
  end

  local function decision(rule, outcome, wait, owes, written, last)
    local remaining = math.floor(at_least_zero(rule.burst + REQUEST - owes) / REQUEST)
    local reset = owes == 0 and 0 or at_least_zero(leaked_at(rule, last, written) - now)
    return outcome, remaining, wait, reset
  end

  local function allowed(rule, owes, last)
    local wait = turn(rule, owes)
    return decision(rule, wait > 0 and AFTER or ALLOWED, wait, owes, owes, last)
  end

  local function peek(rule, cost)
    local stands, last = standing(rule)
    local asked = cost * REQUEST
    if cost == 0 then
      return decision(rule, ALLOWED, 0, stands, rule.owed, rule.last)
    end
    if asked > rule.burst + REQUEST then
      return decision(rule, NEVER, 0, stands, rule.owed, rule.last)
    end
    if stands + asked - REQUEST > rule.burst then
      local over = at_least_zero(rule.owed + asked - (rule.burst + REQUEST))
      local wait = at_least_zero(leaked_at(rule, rule.last, over) - now)
      return decision(rule, RETRY, wait, stands, rule.owed, rule.last)
    end
    return allowed(rule, stands + asked, last)
  end

  local function force(rule, cost)
    if cost == 0 then
      return peek(rule, 0)
    end
    local stands, last = standing(rule)
    rule.owed, rule.last, rule.far_back = math.min(stands + cost * REQUEST, END + 1), last, false
    return allowed(rule, rule.owed, last)
  end

  local function give_thousandths(rule, back)
    local stands, last = standing(rule)
    if stands == 0 then
      return false
    end
    rule.owed, rule.last, rule.far_back = at_least_zero(stands - back), last, false
    return true
  end

  local function refund(rule, cost)
    return give_thousandths(rule, cost * REQUEST)
  end

  local function give_back(rule, cost, til)
    local left = at_least_zero(math.floor((math.floor(til / MILLI) - 1 - millis) * rule.rate / MILLI))
    return give_thousandths(rule, math.min(cost * REQUEST, left))
  end

  local function store(rule)
    if rule.owed > 0 then
      return struct.pack('>BI7I7', 32, rule.last, rule.owed), leaked_at(rule, rule.last, rule.owed)
    end
  end

  local function most(rule)
    return math.floor(rule.burst / REQUEST) + 1
  end

  local function used(value)
    local _, owes = struct.unpack('>xI7I7', value)
    return math.ceil(owes / REQUEST)
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used,
    give_back = give_back,
  }
end

local function beat_number(rule, at)
  return math.floor((at + (rule.period - rule.offset)) / rule.period)
end

local function beat_start(rule, number)
  return instant(at_least_zero(number * rule.period + rule.offset - rule.period))
end

local function stepped_bucket()
  local function read(rule, value)
    rule.number, rule.used = beat_number(rule, now), 0
    if value then
      local start, used = struct.unpack('>xI7I7', value)
      local written = beat_number(rule, start)
      rule.used = at_least_zero(used - at_least_zero(rule.number - written) * rule.step)
      rule.pulled = written > rule.number
    end
  end

  local function until_refilled(rule, amount)
    if amount == 0 then
      return 0
    end
    return at_least_zero(beat_start(rule, rule.number + math.ceil(amount / rule.step)) - now)
  end

  local function decision(rule, outcome, wait, used)
    return outcome, at_least_zero(rule.burst - used), wait, until_refilled(rule, used)
  end

  local function peek(rule, cost)
    local over = at_least_zero(rule.used + cost - rule.burst)
    if cost > rule.burst then
      return decision(rule, NEVER, 0, rule.used)
    end
    if over == 0 or cost == 0 then
      return decision(rule, ALLOWED, 0, rule.used + cost)
    end
    return decision(rule, RETRY, until_refilled(rule, over), rule.used)
  end

  local function force(rule, cost)
    rule.used = math.min(rule.used + cost, END)
    return decision(rule, ALLOWED, 0, rule.used)
  end

  local function refund(rule, cost)
    local owes = rule.used > 0
    rule.used = at_least_zero(rule.used - cost)
    return owes
  end

  local function give_back(rule, cost, til)
    return refund(rule, math.min(cost, (beat_number(rule, til) - rule.number - 1) * rule.step + 1))
  end

  local function store(rule)
    if rule.used > 0 then
      local idle_at = beat_start(rule, rule.number + math.ceil(rule.used / rule.step))
      return struct.pack('>BI7I7', 64, beat_start(rule, rule.number), rule.used), idle_at
    end
  end

  local function most(rule)
    return rule.burst
  end

  local function used(value)
    local _, count = struct.unpack('>xI7I7', value)
    return count
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used,
    give_back = give_back,
  }
end

local function fixed_window()
  local BY_THE_CLOCK, FROM_FIRST_HIT = 3, 4
  local HIGH = 2 ^ 48

  local function open(value)
    local kind = math.floor(string.byte(value) / 32)
    if kind == BY_THE_CLOCK then
      local high, low, count = struct.unpack(#value == 12 and '>BI6I5' or '>BI6I7', value)
      return kind, nil, high % 32 * HIGH + low, count
    end
    local opened, length, count = struct.unpack('>xI7I7I7', value)
    return kind, opened, opened + length, count
  end

  local function aligned(rule)
    local number = beat_number(rule, now)
    rule.kind, rule.opened, rule.ends = BY_THE_CLOCK, beat_start(rule, number), beat_start(rule, number + 1)
  end

  local function opened_at(rule, at)
    rule.kind, rule.opened = FROM_FIRST_HIT, math.min(at, now)
    rule.ends = instant(rule.opened + rule.period)
  end

  local function read(rule, value)
    local kind, opened, ends, count
    if value then
      kind, opened, ends, count = open(value)
    end
    if rule.offset then
      aligned(rule)
    else
      opened_at(rule, opened or now)
    end
    if not value or now >= ends or now >= rule.ends then
      count = 0
    end
    if count == 0 and not rule.offset then
      opened_at(rule, now)
    end
    rule.count = count
    rule.pulled = count > 0 and (rule.kind ~= kind or rule.ends ~= ends)
  end

  local function decision(rule, outcome, wait, count)
    return outcome, at_least_zero(rule.limit - count), wait, count == 0 and 0 or at_least_zero(rule.ends - now)
  end

  local function peek(rule, cost)
    if cost > rule.limit then
      return decision(rule, NEVER, 0, rule.count)
    end
    if cost == 0 or rule.count + cost <= rule.limit then
      return decision(rule, ALLOWED, 0, rule.count + cost)
    end
    return decision(rule, RETRY, at_least_zero(rule.ends - now), rule.count)
  end

  local function force(rule, cost)
    rule.count = math.min(rule.count + cost, END)
    return decision(rule, ALLOWED, 0, rule.count)
  end

  local function refund(rule, cost)
    local owes = rule.count > 0
    rule.count = at_least_zero(rule.count - cost)
    return owes
  end

  local function store(rule)
    if rule.count > 0 then
      if rule.kind == FROM_FIRST_HIT then
        return struct.pack('>BI7I7I7', 32 * rule.kind, rule.opened, rule.ends - rule.opened, rule.count), rule.ends
      end
      local low = rule.ends % HIGH
      local head = 32 * rule.kind + (rule.ends - low) / HIGH
      return struct.pack(rule.count < 2 ^ 40 and '>BI6I5' or '>BI6I7', head, low, rule.count), rule.ends
    end
  end

  local function most(rule)
    return rule.limit
  end

  local function used(value)
    local _, _, ends, count = open(value)
    return now < ends and count or 0
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used }
end

local function sliding_log()
  local PLAIN, STEPPED = 160, 161

  local function entry(entries, position)
    return (struct.unpack('>I7', entries, position * 7 - 6))
  end

  local function from_position(entries, position)
    return string.sub(entries, position * 7 - 6)
  end

  local function up_to(entries, at)
    local before, after = 0, #entries / 7 + 1
    while after - before > 1 do
      local middle = math.floor((before + after) / 2)
      if entry(entries, middle) <= at then
        before = middle
      else
        after = middle
      end
    end
    return before
  end

  local function keep(rule, entries)
    rule.live = math.min(#entries / 7, rule.limit)
    rule.entries = from_position(entries, #entries / 7 - rule.live + 1)
  end

  local function moved(entries, by)
    local parts = {}
    for position = 1, #entries / 7 do
      parts[position] = struct.pack('>I7', at_least_zero(entry(entries, position) + by))
    end
    return table.concat(parts)
  end

  local function entries_of(value)
    if string.byte(value) == STEPPED then
      return string.sub(value, 9), (struct.unpack('>I7', value, 2))
    end
    return string.sub(value, 2)
  end

  local function read(rule, value)
    local entries, high = '', nil
    if value then
      entries, high = entries_of(value)
    end
    local newest, back_to = entries ~= '' and entry(entries, #entries / 7) or 0, math.max(now, rule.period)
    if high and now >= high then
      entries, newest, high, rule.pulled = moved(entries, high - newest), high, nil, true
    elseif newest - back_to >= rule.period then
      high = math.max(high or 0, newest)
      entries, newest, rule.pulled = moved(entries, back_to - newest), back_to, true
    end
    rule.high, rule.at = high, math.max(now, newest)
    keep(rule, from_position(entries, up_to(entries, rule.at - rule.period) + 1))
  end

  local function until_left(rule, made, newest)
    local wait = made - now + rule.period
    if rule.high and wait >= rule.high - now then
      wait = wait + rule.high - newest
    end
    return wait
  end

  local function until_gone(rule, count)
    return count == 0 and 0 or until_left(rule, entry(rule.entries, count), entry(rule.entries, rule.live))
  end

  local function decision(rule, outcome, wait, live, reset)
    return outcome, at_least_zero(rule.limit - live), wait, reset
  end

  local function peek(rule, cost)
    local reset = until_gone(rule, rule.live)
    if cost > rule.limit then
      return decision(rule, NEVER, 0, rule.live, reset)
    end
    if cost == 0 then
      return decision(rule, ALLOWED, 0, rule.live, reset)
    end
    if rule.live + cost <= rule.limit then
      return decision(rule, ALLOWED, 0, rule.live + cost, until_left(rule, rule.at, rule.at))
    end
    local over = math.min(rule.live + cost - rule.limit, rule.live)
    return decision(rule, RETRY, until_gone(rule, over), rule.live, reset)
  end

  local function force(rule, cost)
    keep(rule, rule.entries .. string.rep(struct.pack('>I7', rule.at), math.min(cost, rule.limit)))
    return decision(rule, ALLOWED, 0, rule.live, until_gone(rule, rule.live))
  end

  local function refund(rule, cost)
    local owes = rule.live > 0
    keep(rule, from_position(rule.entries, math.min(cost, rule.live) + 1))
    return owes
  end

  local function store(rule)
    if rule.live > 0 and rule.high then
      return struct.pack('>BI7', STEPPED, rule.high) .. rule.entries, instant(rule.high + rule.period)
    elseif rule.live > 0 then
      return string.char(PLAIN) .. rule.entries, instant(entry(rule.entries, rule.live) + rule.period)
    end
  end

  local function most(rule)
    return rule.limit
  end

  local function used(value)
    return #entries_of(value) / 7
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used }
end

local function sliding_window()
  local STRICT, INTERPOLATED, PLAIN = 0, 1, 2
  local HEAD, STEPPED = 192, 193
  local MOST_IN_CELL = 4294967295

  local function cell(rule, at)
    local rest = at % rule.period
    return (at - rest) / rule.period * rule.cells + math.floor(rest * rule.cells / rule.period)
  end

  local function cell_instant(rule, number, parts)
    local rest = number % rule.cells
    return (number - rest) / rule.cells * rule.period + math.ceil((rest * rule.period + parts) / rule.cells)
  end

  local function cell_start(rule, number)
    return cell_instant(rule, number, 0)
  end

  local function cell_count(rule, number)
    return number <= rule.newest and rule.newest - number <= rule.cells and rule.counts[number] or 0
  end

  local function cell_left(rule, at)
    if rule.oldest == STRICT then
      return rule.period
    end
    if rule.oldest == PLAIN then
      return 0
    end
    return rule.period - at % rule.period * rule.cells % rule.period
  end

  local function muldiv(a, b, m)
    local product = a * b
    if product <= END then
      return math.floor(product / m), product % m
    end
    local bit, quotient, rest = 1, 0, 0
    while bit * 2 <= a do
      bit = bit * 2
    end
    while bit >= 1 do
      quotient = quotient * 2
      if rest >= m - rest then
        quotient, rest = quotient + 1, rest - (m - rest)
      else
        rest = rest + rest
      end
      if a >= bit then
        a = a - bit
        if rest >= m - b then
          quotient, rest = quotient + 1, rest - (m - b)
        else
          rest = rest + b
        end
      end
      bit = bit / 2
    end
    return quotient, rest
  end

  local function weighed(rule, oldest, left)
    local whole, rest = muldiv(oldest, left, rule.period)
    return rest > 0 and whole + 1 or whole
  end

  local function cells_of(value)
    local first, period, many, newest = struct.unpack('>BI7I2I7', value)
    local at, high = 18, nil
    if first == STEPPED then
      at, high = 25, (struct.unpack('>I7', value, 18))
    end
    local counts, length = {}, (#value + 1 - at) / 4
    local list = { struct.unpack('>' .. string.rep('I4', length), value, at) }
    for i = 1, length do
      counts[newest - length + i] = list[i]
    end
    return { period = period, cells = many, newest = newest, counts = counts, high = high }
  end

  local function cells_sum(ring, current)
    local sum = 0
    for number = current - ring.cells, ring.newest do
      sum = sum + cell_count(ring, number)
    end
    return sum
  end

  local function furthest_ahead(rule)
    local numbers = 1
    while numbers <= cell(rule, END) do
      numbers = numbers * 2
    end
    return 2 ^ 64 / numbers - 1
  end

  local function move(ring, newest)
    local counts = {}
    for number, count in pairs(ring.counts) do
      counts[number + newest - ring.newest] = count
    end
    ring.newest, ring.counts = newest, counts
  end

  local function follow_clock(ring, oldest)
    local current = cell(ring, now)
    local back_to = math.max(oldest == INTERPOLATED and current + 1 or current, ring.cells)
    local follows = true
    if ring.high and current >= ring.high then
      move(ring, ring.high)
      ring.high = nil
    elseif ring.newest - back_to >= ring.cells then
      ring.high = math.min(math.max(ring.high or 0, ring.newest), back_to + furthest_ahead(ring))
      move(ring, back_to)
    else
      follows = false
    end
    return follows, math.max(current, ring.newest)
  end

  local function read(rule, value)
    local current = cell(rule, now)
    rule.current, rule.newest, rule.counts, rule.at = current, current, {}, now
    if not value then
      return
    end
    local ring = cells_of(value)
    if ring.period ~= rule.period or ring.cells ~= rule.cells then
      local _, their_current = follow_clock(ring, rule.oldest)
      local sum = cells_sum(ring, their_current)
      local high = ring.high and cell(rule, cell_start(ring, ring.high)) or 0
      if sum > 0 and high > current then
        rule.high = math.min(high, current + furthest_ahead(rule))
      end
      rule.counts[current], rule.pulled = sum, true
      return
    end
    rule.pulled, rule.current = follow_clock(ring, rule.oldest)
    rule.newest, rule.counts, rule.high = ring.newest, ring.counts, ring.high
    if current < rule.current then
      rule.at = cell_start(rule, rule.current)
    end
  end

  local function usage(rule, current)
    local full = 0
    for number = current - rule.cells + 1, rule.newest do
      full = full + cell_count(rule, number)
    end
    return full, cell_count(rule, current - rule.cells)
  end

  local function within_cell(rule, full, oldest, current, at, most)
    local spare = most - full
    if spare < 0 then
      return nil
    end
    if weighed(rule, oldest, cell_left(rule, at)) <= spare then
      return at
    end
    if rule.oldest ~= INTERPOLATED then
      return nil
    end
    local left = muldiv(rule.period, spare, oldest)
    local found = cell_instant(rule, current, rule.period - left)
    return found < cell_start(rule, current + 1) and found or nil
  end

  local function until_at_most(rule, most)
    local full, oldest = usage(rule, rule.current)
    local current, at, high, ring_cell = rule.current, rule.at, rule.high, rule.current
    if full <= most and weighed(rule, oldest, cell_left(rule, at)) <= most - full then
      return 0
    end
    while true do
      local found = within_cell(rule, full, oldest, current, at, most)
      if found then
        return found - now
      end
      current = current + 1
      at = cell_start(rule, current)
      if current == high then
        ring_cell = rule.newest
        full, oldest = usage(rule, ring_cell)
      else
        ring_cell = ring_cell + 1
        oldest = cell_count(rule, ring_cell - rule.cells)
        full = full - oldest
      end
    end
  end

  local function cells_until_gone(rule)
    return rule.oldest == PLAIN and rule.cells or rule.cells + 1
  end

  local function unchanged(rule, outcome, wait)
    local full, oldest = usage(rule, rule.current)
    local remaining = at_least_zero(rule.limit - full - weighed(rule, oldest, cell_left(rule, rule.at)))
    return outcome, remaining, wait, until_at_most(rule, 0)
  end

  local function peek(rule, cost)
    if cost == 0 then
      return unchanged(rule, ALLOWED, 0)
    end
    local full, oldest = usage(rule, rule.current)
    local remaining = rule.limit - full - weighed(rule, oldest, cell_left(rule, rule.at)) - cost
    if remaining >= 0 then
      local gone = rule.current + cells_until_gone(rule)
      if rule.high and gone >= rule.high then
        gone = gone + rule.high - rule.current
      end
      return ALLOWED, remaining, 0, cell_start(rule, gone) - now
    end
    if cost > rule.limit then
      return unchanged(rule, NEVER, 0)
    end
    return unchanged(rule, RETRY, until_at_most(rule, rule.limit - cost))
  end

  local function force(rule, cost)
    if cost > 0 then
      local count = cell_count(rule, rule.current)
      rule.newest = rule.current
      rule.counts[rule.current] = math.min(count + cost, MOST_IN_CELL)
    end
    return unchanged(rule, ALLOWED, 0)
  end

  local function refund(rule, cost)
    if rule.counts[rule.current] then
      rule.counts[rule.current] = math.min(rule.counts[rule.current], MOST_IN_CELL)
    end
    local owes, left = false, false
    for number = rule.current + 1 - cells_until_gone(rule), rule.newest do
      local count = cell_count(rule, number)
      local back = math.min(count, cost)
      if back > 0 then
        rule.counts[number], cost, owes = count - back, cost - back, true
      end
      left = left or count > back
    end
    if owes and not left then
      rule.counts = {}
    end
    return owes
  end

  local function store(rule)
    local list, last = {}, nil
    for number = rule.newest - rule.cells, rule.newest do
      local count = cell_count(rule, number)
      if count > 0 then
        last = number
      end
      if last then
        list[#list + 1] = math.min(count, MOST_IN_CELL)
      end
    end
    if last then
      local head = struct.pack('>BI7I2I7', rule.high and STEPPED or HEAD, rule.period, rule.cells, rule.newest)
      local stepped = rule.high and struct.pack('>I7', rule.high) or ''
      local value = head .. stepped .. struct.pack('>' .. string.rep('I4', #list), unpack(list))
      local ahead = rule.high and rule.high - rule.newest or 0
      return value, instant(cell_start(rule, last + cells_until_gone(rule) + ahead))
    end
  end

  local function most(rule)
    return rule.limit
  end

  local function used(value)
    local ring = cells_of(value)
    local _, current = follow_clock(ring, STRICT)
    return cells_sum(ring, current)
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used }
end

local function places()
  local HEAD, ENTRY = 8, 27

  local function entry(expires, cost, id)
    return struct.pack('>I7I4', expires, cost) .. id
  end

  local function living(value)
    local _, sum = struct.unpack('>BI7', value)
    local at = HEAD + 1
    while at <= #value do
      local expires, cost = struct.unpack('>I7I4', value, at)
      if expires > now then
        break
      end
      sum, at = sum - cost, at + ENTRY
    end
    return string.sub(value, at), sum
  end

  local function last_expiry(entries)
    return entries == '' and 0 or struct.unpack('>I7', entries, #entries - ENTRY + 1)
  end

  local function shortened(entries, lease)
    local parts = {}
    for at = 1, #entries, ENTRY do
      local expires, cost = struct.unpack('>I7I4', entries, at)
      parts[#parts + 1] = entry(math.min(expires, now + lease), cost, string.sub(entries, at + 11, at + ENTRY - 1))
    end
    return table.concat(parts)
  end

  local function own_entry(rule)
    local at = 0
    repeat
      at = rule.id and string.find(rule.entries, rule.id, at + 1, true)
    until not at or at % ENTRY == 12
    if not at then
      return nil, 0
    end
    local _, cost = struct.unpack('>I7I4', rule.entries, at - 11)
    return at - 11, cost
  end

  local function read(rule, value)
    rule.entries, rule.sum = '', 0
    if not value then
      return
    end
    rule.entries, rule.sum = living(value)
    if last_expiry(rule.entries) > now + rule.lease then
      rule.entries, rule.pulled = shortened(rule.entries, rule.lease), true
    end
  end

  local function left(rule)
    return at_least_zero(rule.limit - rule.sum)
  end

  local function there(rule)
    local _, own = own_entry(rule)
    return at_least_zero(rule.limit - (rule.sum - own))
  end

  local function peek(rule, cost)
    if cost == 0 then
      return ALLOWED, left(rule), 0, 0
    end
    if cost > rule.limit then
      return NEVER, left(rule), 0, 0
    end
    local free = there(rule)
    if cost > free then
      return BUSY, left(rule), 0, 0
    end
    return ALLOWED, free - cost, 0, 0
  end

  local function drop(rule, at, cost)
    rule.entries = string.sub(rule.entries, 1, at - 1) .. string.sub(rule.entries, at + ENTRY)
    rule.sum = rule.sum - cost
  end

  local function hold(rule, cost)
    rule.entries, rule.sum = rule.entries .. entry(now + rule.lease, cost, rule.id), rule.sum + cost
  end

  local function force(rule, cost)
    if cost > 0 then
      local at, own = own_entry(rule)
      if at then
        drop(rule, at, own)
      end
      hold(rule, cost)
    end
    return ALLOWED, left(rule), 0, 0
  end

  local function refund(rule, cost)
    local at, own = own_entry(rule)
    if not at then
      return false
    end
    if cost >= own then
      drop(rule, at, own)
    else
      local before, after = string.sub(rule.entries, 1, at + 6), string.sub(rule.entries, at + 11)
      rule.entries, rule.sum = before .. struct.pack('>I4', own - cost) .. after, rule.sum - cost
    end
    return true
  end

  local function renew(rule)
    local at, own = own_entry(rule)
    if at then
      drop(rule, at, own)
      hold(rule, own)
    end
    return at and ALLOWED or BUSY, left(rule), 0, 0
  end

  local function store(rule)
    if rule.entries ~= '' then
      return struct.pack('>BI7', 224, rule.sum) .. rule.entries, last_expiry(rule.entries)
    end
  end

  local function most(rule)
    return rule.limit
  end

  local function used(value)
    local _, sum = living(value)
    return sum
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, most = most, used = used,
    there = there, renew = renew,
  }
end

local ALGORITHMS = {
  [0] = bucket, nginx_queue, stepped_bucket, fixed_window, fixed_window, sliding_log, sliding_window, places,
}
local made = {}

local function algorithm(number)
  local make = ALGORITHMS[number]
  made[make] = made[make] or make()
  return made[make]
end

local function number_of(value)
  local number, length = math.floor((string.byte(value) or 0) / 32), #value
  local fits
  if number == 0 then
    fits = length == 12 or (length >= 21 and length % 27 == 21) or (length >= 35 and length % 27 == 8)
  elseif number <= 2 then
    fits = length == 15
  elseif number == 3 then
    fits = length == 12 or length == 14
  elseif number == 4 then
    fits = length == 22
  elseif number == 5 then
    fits = length % 7 == 1
  elseif number == 6 then
    fits = length >= 17 and length % 4 == 1 or (length >= 24 and length % 4 == 0 and string.byte(value) == 193)
  else
    fits = length % 27 == 8
  end
  return fits and number or nil
end

local function carry_over(rule, used)
  local id, own = rule.id, rule.algorithm
  own.read(rule, nil)
  rule.id = string.rep('\0', 16)
  own.force(rule, math.min(used, own.most(rule), 4294967295))
  rule.id, rule.pulled = id, true
end

local function quoted(text)
  local shown = string.gsub(string.sub(text, 1, 40), '[%c\127-\255]', '?')
  return "'" .. shown .. (#text > 40 and '…' or '') .. "'"
end

local function mistake(what, expected)
  return redis.error_reply('ERR tidegate: ' .. what .. '; expected ' .. expected)
end

local function in_range(number, least, largest)
  return number ~= nil and number >= least and number <= largest and number % 1 == 0
end

local function called(rule)
  return string.format('rule %d is %s', rule.position, quoted(rule.letter))
end

local function numbers(rule, text, ...)
  local fields = { ... }
  if #text ~= 1 + 8 * #fields / 3 then
    return string.format('%s and %d bytes', called(rule), #text - 1),
      string.format('%d bytes after the letter, 8 for each number', 8 * #fields / 3)
  end
  for i = 1, #fields, 3 do
    local field, least, largest = fields[i], fields[i + 1], fields[i + 2]
    local number = struct.unpack('>I8', text, 8 * (i - 1) / 3 + 2)
    if not in_range(number, least, largest) then
      return string.format('%s with %s %.0f', called(rule), field, number),
        string.format('%s from %.0f to %.0f', field, least, largest)
    end
    rule[field] = number
  end
end

local function parse(rule, text)
  local letter = rule.letter
  if letter == 'b' then
    rule.number = 0
    return numbers(rule, text, 'p', 1, END, 'q', 1, END, 'burst', 1, END)
  elseif letter == 'q' then
    rule.number = 0
    return numbers(rule, text, 'p', 1, END, 'q', 1, END, 'full', 1, END, 'free', 1, END)
  elseif letter == 'g' then
    rule.number = 1
    return numbers(rule, text, 'rate', 1, END, 'burst', 0, END, 'delay', 0, END + 1)
  elseif letter == 's' then
    rule.number = 2
    return numbers(rule, text, 'step', 1, END, 'period', 1, END, 'offset', 0, END, 'burst', 1, END)
  elseif letter == 'w' then
    rule.number = 3
    return numbers(rule, text, 'limit', 1, END, 'period', 1, END, 'offset', 0, END)
  elseif letter == 'h' then
    rule.number = 4
    return numbers(rule, text, 'limit', 1, END, 'period', 1, END)
  elseif letter == 'l' then
    rule.number = 5
    return numbers(rule, text, 'limit', 1, 16384, 'period', 1, END)
  elseif letter == 'c' then
    rule.number = 6
    return numbers(rule, text, 'limit', 1, 4294967295, 'period', 1, END, 'cells', 1, 1000, 'oldest', 0, 2)
  elseif letter == 'n' then
    rule.number = 7
    return numbers(rule, text, 'limit', 1, 4294967295, 'lease', 1, END)
  end
  return called(rule), 'one of the letters b, q, g, s, w, h, l, c, n and its numbers'
end

local function inexact(rule)
  local product = rule.p and rule.p * (rule.burst or 1) or rule.cells and rule.period * rule.cells or 0
  if product > END then
    return string.format('%s with a product of %.0f', called(rule), product), 'p · burst, or period · cells, below 2^53'
  end
  if rule.offset and rule.offset >= rule.period then
    return string.format('%s with offset %.0f', called(rule), rule.offset), 'an offset below the period'
  end
end

local verb, id = ARGV[1], ARGV[2 * #KEYS + 2]
if #KEYS == 0 or (#ARGV ~= 2 * #KEYS + 1 and #ARGV ~= 2 * #KEYS + 2) then
  return mistake(string.format('%d keys and %d arguments', #KEYS, #ARGV),
    'at least one key, and as arguments a verb, a cost and a rule for each key, and for places an id')
end
if #verb ~= 1 or not string.find('cptfrgxnlku', verb, 1, true) then
  return mistake('verb ' .. quoted(verb), 'one of the letters c, p, t, f, r, g, x, n, l, k, u')
end
if id and verb == 'k' and #id % 20 ~= 16 then
  return mistake(string.format('id of %d bytes', #id), '16 bytes that nobody else has, and 20 for each older grant')
end
if id and verb ~= 'k' and #id ~= 16 then
  return mistake(string.format('id %s of %d bytes', quoted(id), #id), '16 bytes that nobody else has')
end

local rules, seen = {}, {}
for i = 1, #KEYS do
  local key, cost, til = KEYS[i], tonumber(ARGV[2 * i]), nil
  if verb == 'g' then
    local both = { string.match(ARGV[2 * i], '^(%d+) (%d+)$') }
    cost, til = tonumber(both[1]), tonumber(both[2])
    if not in_range(cost, 0, 4294967295) or not in_range(til, 0, END) then
      return mistake(string.format('cost %d is ', i) .. quoted(ARGV[2 * i]), 'a cost, a space, and an instant')
    end
  end
  local stock, ttl, ahead
  if verb == 'k' then
    local four = { string.match(ARGV[2 * i], '^(%d+) (%d+) (%d+) (%d+)$') }
    cost, stock, ttl, ahead = tonumber(four[1]), tonumber(four[2]), tonumber(four[3]), tonumber(four[4])
    if not in_range(cost, 0, 4294967295) or not in_range(stock, 0, 4294967295) or not in_range(ttl, 1, LONGEST_LEASE) or
        not in_range(ahead, 0, 4294967295) then
      return mistake(string.format('cost %d is ', i) .. quoted(ARGV[2 * i]),
        'a cost, a stock, a time and how many may be reserved, with spaces')
    end
  end
  if not in_range(cost, 0, 4294967295) then
    return mistake(string.format('cost %d is ', i) .. quoted(ARGV[2 * i]), 'a whole number from 0 to 4294967295')
  end
  if seen[key] then
    return mistake(string.format('key %d is ', i) .. quoted(key) .. ', which was given before', 'each key once')
  end
  if verb == 't' and i > 1 and cost ~= rules[1].cost then
    return mistake(string.format('cost %d is ', i) .. quoted(ARGV[2 * i]), 'the same cost for every rule of a take')
  end
  local text = ARGV[2 * i + 1]
  local letter = string.sub(text, 1, 1)
  local rule = { letter = letter, key = key, cost = cost, til = til, id = id, position = i }
  rule.stock, rule.ttl, rule.ahead = stock, ttl, ahead
  local found, expected = parse(rule, text)
  if not found then
    found, expected = inexact(rule)
  end
  if found then
    return mistake(found, expected)
  end
  if (verb == 'k' or verb == 'u') and (letter ~= 'b' or #KEYS > 1) then
    return mistake(string.format('rule %d and verb %s', i, quoted(verb)), 'one token bucket, alone')
  end
  local needs_id = string.find('nlku', verb, 1, true) or (rule.letter == 'n' and verb ~= 'p' and verb ~= 'x')
  if needs_id and not id then
    return mistake(string.format('rule %d and verb %s without an id', i, quoted(verb)),
      'the id of who holds the places or the grant, as the last argument')
  end
  seen[key], rules[i], rule.algorithm = true, rule, algorithm(rule.number)
end

local values = redis.call('MGET', unpack(KEYS))
for i, rule in ipairs(rules) do
  local value = values[i] or nil
  local number = value and number_of(value)
  if value and not number then
    return mistake(string.format('key %d, %s, holds %d bytes of something else', i, quoted(rule.key), #value),
      'what this script has written there')
  end
  rule.value = value
  if verb ~= 'x' and number and algorithm(number) ~= rule.algorithm then
    carry_over(rule, algorithm(number).used(value))
  else
    rule.algorithm.read(rule, verb ~= 'x' and value or nil)
  end
  if verb == 'x' and number == 0 then
    algorithm(0).forget(rule, value)
  end
end

local function write(rule)
  local value, idle_at = rule.algorithm.store(rule)
  if value and idle_at > now then
    remember(rule.key, value, idle_at)
  elseif rule.value then
    redis.call('DEL', rule.key)
  end
end

local reply = { now, 1 }

local function tell(i, outcome, remaining, wait, reset)
  reply[4 * i - 1], reply[4 * i], reply[4 * i + 1], reply[4 * i + 2] = outcome, remaining, wait, reset
end

local function judge()
  local passes = true
  for i, rule in ipairs(rules) do
    tell(i, rule.algorithm.peek(rule, rule.cost))
    passes = passes and reply[4 * i - 1] < RETRY
  end
  for i, rule in ipairs(rules) do
    if not passes and reply[4 * i - 1] < RETRY then
      tell(i, rule.algorithm.peek(rule, 0))
    end
  end
  return passes
end

local function force()
  for i, rule in ipairs(rules) do
    tell(i, rule.algorithm.force(rule, rule.cost))
    if rule.cost > 0 then
      write(rule)
    end
  end
end

local function settle()
  for _, rule in ipairs(rules) do
    if rule.pulled then
      write(rule)
    end
  end
end

local function check()
  local passes = judge()
  if passes then
    force()
  else
    settle()
  end
  return passes
end

local function take()
  local amount = rules[1].cost
  for _, rule in ipairs(rules) do
    local _, remaining = rule.algorithm.peek(rule, 0)
    local there = rule.algorithm.there
    amount = math.min(amount, there and there(rule) or remaining)
  end
  for _, rule in ipairs(rules) do
    rule.cost = amount
  end
  reply[3 + 4 * #rules] = check() and amount or 0
end

local function change(act)
  for i, rule in ipairs(rules) do
    if act(rule) then
      write(rule)
    end
    tell(i, rule.algorithm.peek(rule, 0))
  end
end

local function refund(rule)
  return rule.cost > 0 and rule.algorithm.refund(rule, rule.cost)
end

local function give_back(rule)
  local own = rule.algorithm.give_back or rule.algorithm.refund
  return rule.til > now and rule.cost > 0 and own(rule, rule.cost, rule.til)
end

local function reset()
  return true
end

local function for_places(act)
  for i, rule in ipairs(rules) do
    tell(i, ALLOWED, 0, 0, 0)
    if rule.letter == 'n' then
      tell(i, act(rule))
      write(rule)
    end
  end
end

local function release(rule)
  rule.algorithm.refund(rule, END)
  return rule.algorithm.peek(rule, 0)
end

local function renew(rule)
  return rule.algorithm.renew(rule)
end

local function lease(rule)
  local own, claimed = rule.algorithm, 0
  local stock = math.min(rule.stock, own.most(rule))
  for at = 17, #id, 20 do
    local older = string.sub(id, at, at + 15)
    own.shrink(rule, older, (struct.unpack('>I4', id, at + 16)), 0)
  end
  for at = 17, #id, 20 do
    claimed = claimed + own.claim(rule, string.sub(id, at, at + 15), stock, rule.ttl)
  end
  local granted, reserved, wait = own.lease(rule, rule.cost, stock, rule.ttl, string.sub(id, 1, 16), rule.ahead)
  write(rule)
  local _, remaining, _, reset = own.peek(rule, 0)
  local outcome = reserved > 0 and AFTER or granted + claimed > 0 and ALLOWED or RETRY
  tell(1, outcome, remaining, wait, reset)
  reply[7], reply[8], reply[9] = granted, reserved, claimed
end

local function take_back(rule)
  rule.algorithm.take_back(rule, id, rule.cost)
  return true
end

if verb == 'k' then
  lease(rules[1])
  return reply
elseif verb == 'u' then
  change(take_back)
elseif verb == 'c' then
  check()
elseif verb == 'p' then
  judge()
elseif verb == 't' then
  take()
elseif verb == 'f' then
  force()
elseif verb == 'r' then
  change(refund)
elseif verb == 'g' then
  change(give_back)
elseif verb == 'x' then
  change(reset)
elseif verb == 'n' then
  for_places(renew)
else
  for_places(release)
end

reply[2] = binding(reply)
return reply
