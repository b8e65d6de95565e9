-- Tidegate: the Redis script that decides requests. Wire version 1.
--
-- script.lua is the concatenation of the files in script/, in the order of their names. Edit those and run `scripts/lua`;
-- `scripts/check` and a test fail if script.lua is anything else.
--
-- A call names keys, an operation, and a cost and a rule for each key. The script reads the server's clock, decides, charges
-- every key or none, and returns the decisions, in one atomic step. WIRE.md describes the arguments, the reply and the values.
-- The algorithms are those of `tidegate-core`; a test runs both through the same 100,000 random steps and compares every
-- number. The fast paths are tested against the general path in the same way.
--
--   EVALSHA ─► one token bucket, check? ──yes──► decide, write, reply            no function is created on this path
--                 │ no
--                 ├─ only token buckets, check? ──yes──► the same in a loop
--                 │ no
--                 └─ parse the arguments ─► read every state ─► evaluate all ─► charge all or none ─► reply
--
-- Numbers are doubles, exact for integers up to 2^53. Instants are microseconds since 1970 and end there. Intervals are
-- fractions p/q, and time is counted in units of 1/q microsecond. As long as a < 2^53, math.floor(a / b), math.ceil(a / b)
-- and a % b are exact; so is (a + -a % b) / b, which equals the ceiling and is cheaper, if a + b is below 2^53 too. Where a
-- number may grow beyond that, a comment says why the result is still right.
--
-- A token bucket is stored as "`used` tokens, as of `since`", where `since` is less than one interval before the write. This
-- is the instant at which the bucket is full again, expressed in whole tokens:
--
--        since          now                         bucket full
--   ───────┼──────────────┼────────────────────────────┼──────► t
--          ├── elapsed ───┤                            │
--          ├──────────────── used · p/q ───────────────┤
--
-- Unlike an instant it survives a change of the quota, because it counts tokens and not time; and after a large backward step
-- of the clock it still says what was used. The top three bits of a value's first byte are the number of its layout:
--
--   0  token bucket,   since, part, used: 7 + 1 + 4 bytes, or 7 + 7 + 7. The bucket is as of `since` + part/q µs. After a
--      leaky queue     large backward step of the clock 7 + 7 + 7 + 7 + 7: high-water mark of the clock, time of the write
--   1  nginx queue     number, last (ms), owed (thousandths of a request)
--   2  stepped bucket  number, first instant of the step, used
--   3  fixed window    number and end, count: 7 + 5 bytes, or 7 + 7   aligned to the clock
--   4                  number, opened, length, count                  from the first hit
--   5  sliding log     number, instants, oldest first. After a large backward step of the clock the lowest bit of the first
--                      byte is set, and the high-water mark precedes the instants
--   6  sliding window  number, period, cells, newest cell, counts of the cells up to the newest, 4 bytes each. After a large
--                      backward step the lowest bit is set, and the cell of the high-water mark precedes the counts, 7 bytes
--   7  permits         number, sum of costs, entries: expires, cost, id
--
-- The high-water mark is the latest instant the state was written at before the clock stepped back. It is kept so that a clock
-- that steps back and forth does not create tokens.
--
-- A bucket of 7 + 7 + 7 bytes or more may be followed by grants and reservations of 7 + 4 + 16 bytes each: expires, amount,
-- id. A grant is tokens that a node has taken in advance to spend without a round trip. Until the node reports what is left
-- of it, or it expires, the bucket does not refill beyond it, because it may be unspent:
--
--   0 ├──── live grants ────┼── used otherwise ──┼──────── available ────────┤ burst
--                           ◄── refills up to here
--
-- A reservation, marked by the top bit of its first byte, is tokens that have not refilled yet. They are charged, so `used`
-- may exceed the burst, but the node may not spend them: it claims them when they have refilled, and the claim turns the
-- reservation into a grant. So a node that cannot reach Redis, or a Redis that lost its data, leaves no promise of tokens.
--
-- A value of another algorithm's layout is charged to the new rule, as if all of it had been used now.

local KEYS, ARGV = KEYS, ARGV -- a local is cheaper than a global
local END = 9007199254740991 -- the last instant, 2^53 - 1
local LONGEST_LEASE = 3600000000 -- one hour

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

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

-- == The strictest decision ====================================================================================

-- Returns the position, from 1, of the strictest decision in a reply: by outcome, then wait, remaining and reset.
local function strictest(reply)
  local position, outcome, remaining, wait, reset = 1, reply[3], reply[4], reply[5], reply[6]
  for i = 2, #KEYS do
    local at = 4 * i
    local by_outcome, by_wait = reply[at - 1] - outcome, reply[at + 1] - wait
    local by_remaining, by_reset = remaining - reply[at], reply[at + 2] - reset
    if by_outcome > 0 or (by_outcome == 0 and (by_wait > 0 or (by_wait == 0 and
        (by_remaining > 0 or (by_remaining == 0 and by_reset > 0))))) then
      position, outcome, remaining, wait, reset = i, reply[at - 1], reply[at], reply[at + 1], reply[at + 2]
    end
  end
  return position
end

-- == Fast path: refusal by one of several token buckets ========================================================
--
-- Separate from the fast path because it needs a function. Nothing is written. Rules that would have allowed the request are
-- reported as they were before it.

if refused then
  for i = 1, #KEYS do
    local at = 4 * i
    if refused[at - 1] == 0 then
      local _, q = struct.unpack('>xI8I8', ARGV[2 * i + 1])
      refused[at], refused[at + 1], refused[at + 2] = refused[at] + ARGV[2 * i], 0, math.ceil(refused[at + 1] / q)
    end
  end
  refused[2] = strictest(refused)
  return refused
end

-- == What the algorithms share =================================================================================
--
-- From here on a rule is a table: its numbers by name, its key, cost and value, and its state at `now`. Each algorithm is a
-- function that creates the functions below, so that a call creates only those of the algorithms it uses:
--
--   read(rule, value)   decodes the state from a value of the same algorithm, or from none. Sets `rule.repaired` if the state
--                       had to be corrected, because the clock stepped back or the rule changed: then even a refusal writes it
--   peek(rule, cost)    outcome, remaining, wait, reset, as if the cost were charged; changes nothing
--   force(rule, cost)   charges the cost, whether it fits or not, and returns the same four
--   refund(rule, cost)  refunds the cost; returns whether anything was charged: if not, nothing is written
--   rollback(rule, cost, charge_ends)  refunds what still counts of a charge that stops counting at `charge_ends`.
--                       An algorithm without it refunds all of it
--   store(rule)         the value, and the instant from which it makes no difference (idle_at); nothing for an unused key
--   max_cost(rule)      the largest cost that can ever be allowed
--   used(value)         what the value counts as used, for another algorithm that takes over the key

local ALLOWED, ALLOWED_AFTER, RETRY_AFTER, BUSY, NEVER = 0, 1, 2, 3, 4

local function at_least_zero(number)
  return number > 0 and number or 0
end

-- Clamps an instant to the last one.
local function instant(micros)
  return micros < END and micros or END
end

-- Writes a value that is needed until `idle_at`.
local function save(key, value, idle_at)
  redis.call('SET', key, value, 'PXAT', string.format('%d', (idle_at + 999) / 1000))
end

-- == Leaky queue ===============================================================================================
--
-- A leaky queue lets requests out one interval apart. Its state is that of a token bucket: each request adds one interval to
-- what is owed, and what is owed is how long the last request in the queue waits for its turn. So it has the token bucket's
-- layout and functions, and differs in two numbers, both in units of 1/q microsecond:
--
--   full   what may be owed at most: the length of the queue in time (a bucket has p · burst)
--   free   what may be owed without waiting: one interval for the request itself, and one for each of `delay`
--
--   0 ├──── free: no wait ────┼──── waits until only `free` is owed ────┤ full: refused

-- How long a request waits for its turn if so much is owed after it, in microseconds. 0 for a token bucket.
local function queue_wait(rule, owed)
  return rule.free and math.ceil((owed - rule.free) / rule.q) or 0
end

-- == Token bucket ==============================================================================================
--
-- The state is what is owed: the time until the bucket is full again. Each token taken adds p/q microseconds, and time pays it
-- back. A request that would owe more than a full bucket is refused, and waits until enough has been paid back:
--
--   0 ├──────── owed ────────┼── cost · p ──┤          allowed: fits below `full`
--     ├──────── owed ────────────────┼── cost · p ──┤  refused: must wait for the part beyond `full`
--     └──────────────────────────────────────┘ full = p · burst
--
-- The header describes the value, and how live grants limit the refill.

local function token_bucket()
  local HEAD, STEPPED, GRANT, NONE = 21, 35, 27, {}
  local RESERVED, HIGH = 128, 2 ^ 48 -- the mark of a reservation shares a byte with the top bits of its expiry

  -- The length of a value without its grants and reservations.
  local function head_of(value)
    return #value % GRANT == STEPPED % GRANT and STEPPED or HEAD
  end

  -- Encodes `used` tokens as of `elapsed` units of 1/q microsecond ago; in 21 bytes if grants follow (`in_full`).
  local function value_of(used, elapsed, p, q, in_full)
    local part = -elapsed % q
    local since = now - (elapsed + part) / q
    if since < 0 then -- just after 1970 `since` may be before 0: move it forward by one token
      part = (p - elapsed) % q
      since, used = now + (p - elapsed - part) / q, used - 1
    end
    if part < 256 and used < 4294967296 and not in_full then
      return struct.pack('>I7BI4', since, part, used)
    end
    return struct.pack('>I7I7I7', since, part, used)
  end

  -- Decodes a value: the tokens used; the units of 1/q microsecond that have passed since, less `lost` microseconds, which is
  -- negative if the clock stepped back; and the first whole microsecond at or after `since`.
  local function tokens(value, q, lost)
    local since, part, used
    if #value == 12 then
      since, part, used = struct.unpack('>I7BI4', value)
    else
      since, part, used = struct.unpack('>I7I7I7', value)
    end
    if part >= q then -- written under a quota with a larger q
      since, part = since + 1, 0
    end
    return used, (now - since - lost) * q - part, part > 0 and since + 1 or since
  end

  -- The high-water mark, as far ahead as `tidegate-core` can store it: without a bound unless q is above 2^22.
  local function storable(instant, q)
    local room, furthest = 2 ^ 22, END + 1
    while room < q do
      room, furthest = room * 2, furthest / 2
    end
    return math.min(instant, now + furthest - 1)
  end

  -- How long until the clock reaches the high-water mark again.
  local function until_return(rule)
    return rule.high and rule.high - now or 0
  end

  -- A wait that reaches beyond the high-water mark, extended by the time up to it, which will not count.
  local function extended(rule, wait)
    local until_then = until_return(rule)
    return until_then > 0 and wait >= until_then and wait + until_then or wait
  end

  -- What may be owed at most: a full bucket, but nothing beyond the last instant.
  local function max_owed(rule)
    return math.min(rule.full, (END - now) * rule.q)
  end

  -- Cuts reservations, oldest first, to what is charged and not granted: the rest of their charge has refilled before it was
  -- claimed. Without this, a grant that is spent late could be mistaken for the charge of a reservation.
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

  -- Decodes the grants and reservations that have not expired. A grant that has expired stopped the refill until then, one
  -- after the other. Returns `used` and `elapsed` after the last of them.
  local function read_grants(rule, value, used, elapsed)
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
    while grants[1] and grants[1].expires <= now do -- grants are stored in the order of expiry
      local since = (now - grants[1].expires) * q
      if elapsed - since >= (used - live) * p then
        used, elapsed = live, since
      end
      lapse(rule, used * p - (elapsed - since), live)
      live = live - table.remove(grants, 1).amount
    end
    rule.grants, rule.live = grants, live
    return used, elapsed
  end

  local function read(rule, value)
    rule.full = rule.full or rule.p * rule.burst
    rule.used, rule.elapsed, rule.grants, rule.live, rule.reservations, rule.reserved = 0, 0, NONE, 0, NONE, 0
    rule.early = 0 -- after a small backward step: the tokens that refill before `since` is reached again
    if not value then
      return
    end
    local high, written = 0, 0
    if head_of(value) == STEPPED then
      high, written = struct.unpack('>I7I7', value, HEAD + 1)
    end
    -- Once the clock is past the high-water mark, the time from the last write up to the mark does not count.
    local p, used, elapsed, since = rule.p, tokens(value, rule.q, now >= high and high - written or 0)
    if #value > HEAD then
      used, elapsed = read_grants(rule, value, used, elapsed)
    end
    if now < high then
      rule.high = storable(high, rule.q)
    end
    if elapsed >= (used - rule.live) * p then
      rule.used, rule.reservations, rule.reserved = rule.live, NONE, 0
      return
    end
    rule.repaired = high > 0
    local back = math.floor(elapsed / p)
    rule.used, rule.elapsed, rule.early = used - back, elapsed - back * p, at_least_zero(-back)
    -- `since` is in the future and more is owed than the bucket holds: a large backward step of the clock.
    if elapsed < 0 and rule.used * p - rule.elapsed > max_owed(rule) then
      rule.used, rule.elapsed, rule.early, rule.repaired = used, 0, 0, true
      rule.high = storable(math.max(high, since), rule.q)
    elseif rule.early > 0 then
      rule.stepped, rule.lost = string.sub(value, HEAD + 1, head_of(value)), high - written
    end
    if rule.reserved > 0 then
      lapse(rule, rule.used * p - rule.elapsed, rule.live)
    end
  end

  -- What is owed in units of 1/q microsecond, at most up to the last instant.
  local function owed(rule)
    return math.min(rule.used * rule.p - rule.elapsed, (END - now) * rule.q)
  end

  -- How many microseconds until no more than `bound` is owed if `owes` is owed now, rounded up. The bucket does not refill beyond
  -- a live grant. The expiry of a grant times q may exceed 2^53, so it is never added to a debt: where `refill` is inexact, it
  -- is larger than any debt, and stays larger.
  local function until_owed(rule, owes, bound)
    local live, at = rule.live * rule.p, 0
    for _, grant in ipairs(rule.grants) do
      local ends = grant.expires - now
      local refill = (ends - at) * rule.q
      if live <= bound and owes - bound <= refill then
        break
      end
      owes, at, live = math.max(owes - refill, math.min(owes, live)), ends, live - grant.amount * rule.p
    end
    return at + math.ceil((owes - bound) / rule.q)
  end

  -- Remaining and reset if `owes` is owed.
  local function level(rule, owes)
    local spare = rule.full % rule.p -- a queue whose length is no multiple of p is empty a little earlier
    local reset = at_least_zero(until_owed(rule, owes, spare))
    return at_least_zero(math.floor((rule.full - owes) / rule.p)), extended(rule, reset)
  end

  local function decision(rule, outcome, wait, owes)
    local remaining, reset = level(rule, owes)
    return outcome, remaining, wait, reset
  end

  -- The decision after a charge: in a leaky queue the request may have to wait for its turn.
  local function allowed(rule, owes)
    local wait = queue_wait(rule, owes)
    if wait > 0 then
      return decision(rule, ALLOWED_AFTER, wait, owes)
    end
    return decision(rule, ALLOWED, 0, owes)
  end

  local function max_cost(rule)
    return math.floor(rule.full / rule.p)
  end

  local function peek(rule, cost)
    local owes = owed(rule)
    if cost == 0 then
      return decision(rule, ALLOWED, 0, owes)
    end
    if cost > max_cost(rule) then
      return decision(rule, NEVER, 0, owes)
    end
    local short = owes - (max_owed(rule) - cost * rule.p)
    if short > 0 then
      local wait = until_owed(rule, owes, owes - short)
      return decision(rule, RETRY_AFTER, extended(rule, wait), owes)
    end
    return allowed(rule, owes + cost * rule.p)
  end

  local function force(rule, cost)
    if cost == 0 then
      return decision(rule, ALLOWED, 0, owed(rule))
    end
    -- A debt is capped at 2^53 units of 1/q microsecond.
    rule.used = math.min(rule.used + cost, math.max(rule.used, math.floor(END / rule.p)))
    return allowed(rule, owed(rule))
  end

  -- If `since` is in the future, `used` stays as of then (`kept`), so that the stored instant does not move.
  local function refund(rule, cost)
    if rule.used <= rule.live then
      return false
    end
    rule.used = rule.used - cost
    if rule.used - rule.early <= rule.live then
      rule.used, rule.elapsed = rule.live, 0
    else
      rule.kept = rule.early
    end
    return true
  end

  local function rollback(rule, cost, charge_ends)
    if rule.used <= rule.live then
      return false
    end
    -- Resets are rounded up, so the charge may end up to a microsecond before `charge_ends`.
    local back = math.min(cost * rule.p, (charge_ends - now - 1) * rule.q + 1)
    local owes = math.max(rule.used * rule.p - rule.elapsed - back, rule.live * rule.p)
    rule.used = math.ceil(owes / rule.p)
    rule.elapsed = rule.used * rule.p - owes
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
    local value = { value_of(rule.used - kept, rule.elapsed - kept * rule.p, rule.p, rule.q, in_full), stepped }
    for _, grant in ipairs(rule.grants) do
      value[#value + 1] = struct.pack('>I7I4', grant.expires, grant.amount) .. grant.id
    end
    for _, grant in ipairs(rule.reservations) do
      local low = grant.expires % HIGH
      value[#value + 1] = struct.pack('>BI6I4', RESERVED + (grant.expires - low) / HIGH, low, grant.amount) .. grant.id
    end
    return table.concat(value), instant(now + until_owed(rule, owed(rule), 0) + lost)
  end

  local function used(value)
    return (tokens(value, 1, 0))
  end

  -- A reset keeps the grants, because nodes may still spend them, and drops the reservations.
  local function forget(rule, value)
    if value and #value > HEAD then
      read_grants(rule, value, 0, 0)
      rule.used, rule.reservations, rule.reserved = rule.live, NONE, 0
    end
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used,
    rollback = rollback, forget = forget, owed = owed, max_owed = max_owed, until_owed = until_owed,
  }
end

-- == Leases ====================================================================================================
--
-- Grants and reservations of one token bucket, for the operations `lease` and `return`. The invariant: what the bucket without
-- leases would hold is never less than what this one holds plus all unspent live grants. So no more is admitted than without
-- leases, whatever replies and nodes are lost.
--
--   lease ──► available? ──yes──► grant ──► spent, reported, returned, or expired
--                 │ no                ▲
--                 └──► reservation ───┘ claim, when the tokens have refilled
--
-- A grant that expires credits nothing. A report or a return for an unknown id does nothing.

local function leases(bucket)
  -- Removes the reservation with this id from the list and returns it.
  local function take_reservation(rule, id)
    for i, reservation in ipairs(rule.reservations) do
      if reservation.id == id then
        rule.reserved = rule.reserved - reservation.amount
        return table.remove(rule.reservations, i)
      end
    end
  end

  -- Records that at most `left` of a grant is unspent. The rest was spent, except `back` tokens, which are credited.
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

  -- Inserts a grant in the order of expiry.
  local function insert(rule, grant)
    local at = #rule.grants + 1
    while at > 1 and rule.grants[at - 1].expires > grant.expires do
      at = at - 1
    end
    if #rule.grants == 0 then
      rule.grants = {} -- the empty list is shared
    end
    table.insert(rule.grants, at, grant)
    rule.live = rule.live + grant.amount
  end

  -- After a backward step of the clock, no grant expires later than the longest lease from now. The lease time of this request
  -- is no bound: other nodes may hold longer ones and still spend them.
  local function clamp(grants, latest)
    for _, grant in ipairs(grants) do
      grant.expires = math.min(grant.expires, latest)
    end
  end

  -- Turns a reservation into a grant and returns its amount. It is less than was reserved if fewer tokens have refilled, or if
  -- more than the stock would be unspent.
  local function claim(rule, id, stock, ttl)
    local reservation = take_reservation(rule, id)
    if not reservation then
      return 0
    end
    local amount = reservation.amount
    local refilled = math.floor((bucket.max_owed(rule) - (rule.used * rule.p - rule.elapsed)) / rule.p) + rule.reserved + amount
    local granted = at_least_zero(math.min(amount, refilled, stock - rule.live))
    rule.used = rule.used - (amount - granted)
    if granted > 0 then
      insert(rule, { expires = instant(now + ttl), amount = granted, id = id })
    end
    return granted
  end

  -- Ends a grant or a reservation and credits what is unspent of it.
  local function cancel(rule, id, unspent)
    local reservation = take_reservation(rule, id)
    if reservation then
      bucket.refund(rule, math.min(unspent, reservation.amount))
    else
      shrink(rule, id, 0, unspent)
    end
  end

  -- Grants up to `want` of the available tokens, as long as no more than `stock` are unspent. If none is available, reserves up
  -- to `max_reserved` of the next to refill. Returns how many were granted, how many reserved, and how long until the reservation can
  -- be claimed or a retry is useful.
  local function grant(rule, want, stock, ttl, id, max_reserved)
    local fills_in = math.ceil(rule.full / rule.q)
    clamp(rule.grants, now + LONGEST_LEASE)
    clamp(rule.reservations, now + LONGEST_LEASE + 2 * fills_in)
    local owes, at_most = bucket.owed(rule), bucket.max_owed(rule)
    local available = at_least_zero(math.floor((at_most - owes) / rule.p))
    if available > 0 then
      local granted = math.min(want, available, stock - rule.live)
      if granted <= 0 then
        local first = rule.grants[1]
        return 0, 0, first and first.expires - now or 0
      end
      rule.used = rule.used + granted
      insert(rule, { expires = instant(now + ttl), amount = granted, id = id })
      return granted, 0, 0
    end
    local reserved = math.min(want, max_reserved, stock - rule.reserved)
    if reserved <= 0 then
      return 0, 0, bucket.until_owed(rule, owes, at_most - rule.p)
    end
    rule.used, rule.reserved = rule.used + reserved, rule.reserved + reserved
    local wait = at_least_zero(bucket.until_owed(rule, bucket.owed(rule), at_most))
    if #rule.reservations == 0 then
      rule.reservations = {}
    end
    table.insert(rule.reservations, { expires = instant(now + wait + ttl), amount = reserved, id = id })
    return 0, reserved, wait
  end

  return { shrink = shrink, claim = claim, cancel = cancel, grant = grant }
end

-- == nginx queue ===============================================================================================
--
-- The leaky queue of nginx's limit_req, with its rounding: milliseconds, and thousandths of a request. As in nginx, what has
-- leaked is worked out and rounded at each request, so the result depends on when requests come.

local function nginx_queue()
  local REQUEST, MILLI, FAR_BACK = 1000, 1000, 60000
  local millis = math.floor(now / MILLI)

  -- What is owed at `now`, as nginx computes it at each request, and as of when.
  local function current(rule)
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
      rule.last, rule.repaired = millis, true
    end
  end

  local function leaked_at(rule, last, less)
    return instant((last + math.ceil(less * MILLI / rule.rate)) * MILLI)
  end

  local function queue_delay(rule, owes)
    local excess = at_least_zero(at_least_zero(owes - REQUEST) - rule.delay)
    return math.floor(excess * MILLI / rule.rate) * MILLI
  end

  -- A decision after which `owes` is owed, with `written` stored as of `last`.
  local function decision(rule, outcome, wait, owes, written, last)
    local remaining = math.floor(at_least_zero(rule.burst + REQUEST - owes) / REQUEST)
    local reset = owes == 0 and 0 or at_least_zero(leaked_at(rule, last, written) - now)
    return outcome, remaining, wait, reset
  end

  local function allowed(rule, owes, last)
    local wait = queue_delay(rule, owes)
    return decision(rule, wait > 0 and ALLOWED_AFTER or ALLOWED, wait, owes, owes, last)
  end

  local function peek(rule, cost)
    local level, last = current(rule)
    local charge = cost * REQUEST
    if cost == 0 then
      return decision(rule, ALLOWED, 0, level, rule.owed, rule.last)
    end
    if charge > rule.burst + REQUEST then
      return decision(rule, NEVER, 0, level, rule.owed, rule.last)
    end
    if level + charge - REQUEST > rule.burst then
      -- From the stored state, because a refusal writes nothing.
      local over = at_least_zero(rule.owed + charge - (rule.burst + REQUEST))
      local wait = at_least_zero(leaked_at(rule, rule.last, over) - now)
      return decision(rule, RETRY_AFTER, wait, level, rule.owed, rule.last)
    end
    return allowed(rule, level + charge, last)
  end

  local function force(rule, cost)
    if cost == 0 then
      return peek(rule, 0)
    end
    local level, last = current(rule)
    rule.owed, rule.last, rule.far_back = math.min(level + cost * REQUEST, END + 1), last, false
    return allowed(rule, rule.owed, last)
  end

  local function refund_thousandths(rule, back)
    local level, last = current(rule)
    if level == 0 then
      return false
    end
    rule.owed, rule.last, rule.far_back = at_least_zero(level - back), last, false
    return true
  end

  local function refund(rule, cost)
    return refund_thousandths(rule, cost * REQUEST)
  end

  local function rollback(rule, cost, charge_ends)
    local left = at_least_zero(math.floor((math.floor(charge_ends / MILLI) - 1 - millis) * rule.rate / MILLI))
    return refund_thousandths(rule, math.min(cost * REQUEST, left))
  end

  local function store(rule)
    if rule.owed > 0 then
      return struct.pack('>BI7I7', 32, rule.last, rule.owed), leaked_at(rule, rule.last, rule.owed)
    end
  end

  local function max_cost(rule)
    return math.floor(rule.burst / REQUEST) + 1
  end

  local function used(value)
    local _, owes = struct.unpack('>xI7I7', value)
    return math.ceil(owes / REQUEST)
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used,
    rollback = rollback,
  }
end

-- == Grid of periods: stepped bucket and fixed window ==========================================================
--
--   index   0        1             2             3
--           ┼────────┼─────────────┼─────────────┼──► t       one period each; the first ends at the offset
--           0     offset

-- The index of the period that contains an instant. What lies before the offset is index 0.
local function grid_index(rule, at)
  return math.floor((at + (rule.period - rule.offset)) / rule.period)
end

-- The first instant of a period.
local function grid_start(rule, index)
  return instant(at_least_zero(index * rule.period + rule.offset - rule.period))
end

-- == Stepped bucket ============================================================================================
--
-- A bucket that refills by `step` tokens at the start of each period, instead of continuously. The state is how many tokens are
-- used in the current period.

local function stepped_bucket()
  local function read(rule, value)
    rule.index, rule.used = grid_index(rule, now), 0
    if value then
      local start, used = struct.unpack('>xI7I7', value)
      local written = grid_index(rule, start)
      rule.used = at_least_zero(used - at_least_zero(rule.index - written) * rule.step)
      rule.repaired = written > rule.index
    end
  end

  local function until_refilled(rule, amount)
    if amount == 0 then
      return 0
    end
    return at_least_zero(grid_start(rule, rule.index + math.ceil(amount / rule.step)) - now)
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
    return decision(rule, RETRY_AFTER, until_refilled(rule, over), rule.used)
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

  local function rollback(rule, cost, charge_ends)
    return refund(rule, math.min(cost, (grid_index(rule, charge_ends) - rule.index - 1) * rule.step + 1))
  end

  local function store(rule)
    if rule.used > 0 then
      local idle_at = grid_start(rule, rule.index + math.ceil(rule.used / rule.step))
      return struct.pack('>BI7I7', 64, grid_start(rule, rule.index), rule.used), idle_at
    end
  end

  local function max_cost(rule)
    return rule.burst
  end

  local function used(value)
    local _, count = struct.unpack('>xI7I7', value)
    return count
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used,
    rollback = rollback,
  }
end

-- == Fixed window ==============================================================================================
--
-- Counts requests in one window at a time: aligned to the clock (layout 3), or opened by the first request (layout 4).

local function fixed_window()
  local ALIGNED, FROM_FIRST_HIT = 3, 4
  local HIGH = 2 ^ 48 -- the layout number and 5 bits of the instant share a byte

  -- Decodes a value: the layout, when the window opened, when it ends, and the count. An aligned window does not store when it
  -- opened.
  local function decode(value)
    local kind = math.floor(string.byte(value) / 32)
    if kind == ALIGNED then
      local high, low, count = struct.unpack(#value == 12 and '>BI6I5' or '>BI6I7', value)
      return kind, nil, high % 32 * HIGH + low, count
    end
    local opened, length, count = struct.unpack('>xI7I7I7', value)
    return kind, opened, opened + length, count
  end

  local function aligned(rule)
    local index = grid_index(rule, now)
    rule.kind, rule.opened, rule.ends = ALIGNED, grid_start(rule, index), grid_start(rule, index + 1)
  end

  -- A window from the first hit. If it opened after `now`, the clock has stepped back since.
  local function opened_at(rule, at)
    rule.kind, rule.opened = FROM_FIRST_HIT, math.min(at, now)
    rule.ends = instant(rule.opened + rule.period)
  end

  -- A stored window counts until its own end. Which window its count continues in depends on the rule.
  local function read(rule, value)
    local kind, opened, ends, count
    if value then
      kind, opened, ends, count = decode(value)
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
    rule.repaired = count > 0 and (rule.kind ~= kind or rule.ends ~= ends)
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
    return decision(rule, RETRY_AFTER, at_least_zero(rule.ends - now), rule.count)
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

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    local _, _, ends, count = decode(value)
    return now < ends and count or 0
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used }
end

-- == Sliding log ===============================================================================================
--
-- Stores the instant of every request of the last period. Exact, and 7 bytes per request.
--
--   ──┼───x──x─────┼──x────x───x──┼──► t      at most `limit` entries in (now - period, now]
--               now - period     now

local function sliding_log()
  local PLAIN, STEPPED = 160, 161 -- the first byte of a value, without and with a high-water mark

  -- The instants are concatenated in a string, 7 bytes each, oldest first. Returns the one at a position, from 1.
  local function entry(entries, position)
    return (struct.unpack('>I7', entries, position * 7 - 6))
  end

  local function from_position(entries, position)
    return string.sub(entries, position * 7 - 6)
  end

  -- How many entries, from the oldest, are not after an instant, by binary search.
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

  -- Keeps the newest entries, at most as many as the limit: older ones beyond it make no difference to any decision.
  local function keep(rule, entries)
    rule.live = math.min(#entries / 7, rule.limit)
    rule.entries = from_position(entries, #entries / 7 - rule.live + 1)
  end

  -- The entries, each moved by the same amount, but not before 0.
  local function moved(entries, by)
    local parts = {}
    for position = 1, #entries / 7 do
      parts[position] = struct.pack('>I7', at_least_zero(entry(entries, position) + by))
    end
    return table.concat(parts)
  end

  -- The entries of a value, and its high-water mark.
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
    if high and now >= high then -- past the mark: the time from the newest entry up to it does not count
      entries, newest, high, rule.repaired = moved(entries, high - newest), high, nil, true
    elseif newest - back_to >= rule.period then -- a large backward step: the entries move with the clock
      high = math.max(high or 0, newest)
      entries, newest, rule.repaired = moved(entries, back_to - newest), back_to, true
    end
    -- After a small backward step, time stands still until the newest entry is reached.
    rule.high, rule.at = high, math.max(now, newest)
    keep(rule, from_position(entries, up_to(entries, rule.at - rule.period) + 1))
  end

  -- How long until an entry of the instant `made` expires, if the newest is of the instant `newest`. Beyond the high-water mark
  -- it takes longer, by the time that does not count.
  local function until_expiry_of(rule, made, newest)
    local wait = made - now + rule.period
    if rule.high and wait >= rule.high - now then
      wait = wait + rule.high - newest
    end
    return wait
  end

  -- How long until the `count` oldest entries have expired.
  local function until_expired(rule, count)
    return count == 0 and 0 or until_expiry_of(rule, entry(rule.entries, count), entry(rule.entries, rule.live))
  end

  local function decision(rule, outcome, wait, live, reset)
    return outcome, at_least_zero(rule.limit - live), wait, reset
  end

  local function peek(rule, cost)
    local reset = until_expired(rule, rule.live)
    if cost > rule.limit then
      return decision(rule, NEVER, 0, rule.live, reset)
    end
    if cost == 0 then
      return decision(rule, ALLOWED, 0, rule.live, reset)
    end
    if rule.live + cost <= rule.limit then
      return decision(rule, ALLOWED, 0, rule.live + cost, until_expiry_of(rule, rule.at, rule.at))
    end
    local over = math.min(rule.live + cost - rule.limit, rule.live)
    return decision(rule, RETRY_AFTER, until_expired(rule, over), rule.live, reset)
  end

  local function force(rule, cost)
    keep(rule, rule.entries .. string.rep(struct.pack('>I7', rule.at), math.min(cost, rule.limit)))
    return decision(rule, ALLOWED, 0, rule.live, until_expired(rule, rule.live))
  end

  -- Removes the oldest entries: without the newest, the others would expire too early.
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

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    return #entries_of(value) / 7
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used }
end

-- == Sliding window ============================================================================================
--
-- Divides the period into cells and counts requests per cell. The oldest cell lies only partly in the window; `oldest` says how
-- it counts: in full (strict), in proportion to the part that is left (interpolated), or not at all (plain).
--
--     oldest                          current
--   ┼────────┼────────┼────────┼────────┼──┼──► t
--        ├───────────── period ────────────┤
--                                         now

local function sliding_window()
  local STRICT, INTERPOLATED, PLAIN = 0, 1, 2
  local HEAD, STEPPED = 192, 193 -- the first byte of a value, without and with a high-water mark
  local MAX_COUNT = 4294967295 -- the count of a cell is capped here

  -- The number of the cell that contains an instant. Whole periods first, because at · cells may be inexact.
  local function cell(rule, at)
    local rest = at % rule.period
    return (at - rest) / rule.period * rule.cells + math.floor(rest * rule.cells / rule.period)
  end

  -- The first instant at least parts / cells microseconds after the start of a cell.
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

  -- How much of the oldest cell still counts, in parts of `period`.
  local function cell_left(rule, at)
    if rule.oldest == STRICT then
      return rule.period
    end
    if rule.oldest == PLAIN then
      return 0
    end
    return rule.period - at % rule.period * rule.cells % rule.period
  end

  -- Quotient and remainder of a · b ÷ m, exact for b ≤ m < 2^53 even if a · b is larger: by doubling and adding, bit by bit
  -- from the top.
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

  -- The weighted count of the oldest cell, rounded up.
  local function weighted(rule, oldest, left)
    local whole, rest = muldiv(oldest, left, rule.period)
    return rest > 0 and whole + 1 or whole
  end

  -- Decodes a value: counts by cell number, the number of the newest cell, and that of the high-water mark.
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

  -- The sum of all cells that count, at least in part, while `current` is the current cell. A value does not say how its
  -- oldest cell counts, so that is included.
  local function cells_sum(ring, current)
    local sum = 0
    for number = current - ring.cells, ring.newest do
      sum = sum + cell_count(ring, number)
    end
    return sum
  end

  -- How far ahead `tidegate-core` can store the high-water mark: a cell's number and the distance share 64 bits.
  local function furthest_ahead(rule)
    local numbers = 1
    while numbers <= cell(rule, END) do
      numbers = numbers * 2
    end
    return 2 ^ 64 / numbers - 1
  end

  -- Makes another cell the newest and moves all counts with it.
  local function move(ring, newest)
    local counts = {}
    for number, count in pairs(ring.counts) do
      counts[number + newest - ring.newest] = count
    end
    ring.newest, ring.counts = newest, counts
  end

  -- Moves the counts with the clock if it is past the high-water mark, or has taken a large backward step. Returns whether it
  -- did, and the current cell: after a small backward step this is the newest cell until the clock reaches it.
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
    if ring.period ~= rule.period or ring.cells ~= rule.cells then -- the rule changed: what still counts is counted now
      local _, their_current = follow_clock(ring, rule.oldest)
      local sum = cells_sum(ring, their_current)
      local high = ring.high and cell(rule, cell_start(ring, ring.high)) or 0
      if sum > 0 and high > current then
        rule.high = math.min(high, current + furthest_ahead(rule))
      end
      rule.counts[current], rule.repaired = sum, true
      return
    end
    rule.repaired, rule.current = follow_clock(ring, rule.oldest)
    rule.newest, rule.counts, rule.high = ring.newest, ring.counts, ring.high
    if current < rule.current then
      rule.at = cell_start(rule, rule.current)
    end
  end

  -- The sum of the cells that count in full while `current` is the current cell, and the count of the oldest cell.
  local function usage(rule, current)
    local full = 0
    for number = current - rule.cells + 1, rule.newest do
      full = full + cell_count(rule, number)
    end
    return full, cell_count(rule, current - rule.cells)
  end

  -- The first instant from `at` on, within cell `current`, at which at most `bound` is used; nil if there is none.
  local function within_cell(rule, full, oldest, current, at, bound)
    local spare = bound - full
    if spare < 0 then
      return nil
    end
    if weighted(rule, oldest, cell_left(rule, at)) <= spare then
      return at
    end
    if rule.oldest ~= INTERPOLATED then
      return nil
    end
    -- What `left` must fall to. The spare is less than the count of the oldest cell, or it would have fitted.
    local left = muldiv(rule.period, spare, oldest)
    local found = cell_instant(rule, current, rule.period - left)
    return found < cell_start(rule, current + 1) and found or nil
  end

  -- How long until at most `bound` is used, if nothing is charged.
  local function until_at_most(rule, bound)
    local full, oldest = usage(rule, rule.current)
    local current, at, high, ring_cell = rule.current, rule.at, rule.high, rule.current
    if full <= bound and weighted(rule, oldest, cell_left(rule, at)) <= bound - full then
      return 0
    end
    while true do
      local found = within_cell(rule, full, oldest, current, at, bound)
      if found then
        return found - now
      end
      current = current + 1
      at = cell_start(rule, current)
      if current == high then -- the high-water mark: the counts move to it
        ring_cell = rule.newest
        full, oldest = usage(rule, ring_cell)
      else -- a cell that counted in full becomes the oldest
        ring_cell = ring_cell + 1
        oldest = cell_count(rule, ring_cell - rule.cells)
        full = full - oldest
      end
    end
  end

  -- The number of cells after which a cell no longer counts at all.
  local function cells_until_gone(rule)
    return rule.oldest == PLAIN and rule.cells or rule.cells + 1
  end

  -- A decision that charges nothing.
  local function unchanged(rule, outcome, wait)
    local full, oldest = usage(rule, rule.current)
    local remaining = at_least_zero(rule.limit - full - weighted(rule, oldest, cell_left(rule, rule.at)))
    return outcome, remaining, wait, until_at_most(rule, 0)
  end

  local function peek(rule, cost)
    if cost == 0 then
      return unchanged(rule, ALLOWED, 0)
    end
    local full, oldest = usage(rule, rule.current)
    local remaining = rule.limit - full - weighted(rule, oldest, cell_left(rule, rule.at)) - cost
    if remaining >= 0 then
      local gone = rule.current + cells_until_gone(rule)
      if rule.high and gone >= rule.high then -- the cells up to the mark will not count
        gone = gone + rule.high - rule.current
      end
      return ALLOWED, remaining, 0, cell_start(rule, gone) - now
    end
    if cost > rule.limit then
      return unchanged(rule, NEVER, 0)
    end
    return unchanged(rule, RETRY_AFTER, until_at_most(rule, rule.limit - cost))
  end

  local function force(rule, cost)
    if cost > 0 then
      local count = cell_count(rule, rule.current)
      rule.newest = rule.current
      rule.counts[rule.current] = math.min(count + cost, MAX_COUNT)
    end
    return unchanged(rule, ALLOWED, 0)
  end

  -- From the oldest cells first, as in the sliding log. A key that is refunded in full is like an unused one.
  local function refund(rule, cost)
    if rule.counts[rule.current] then
      rule.counts[rule.current] = math.min(rule.counts[rule.current], MAX_COUNT)
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
        list[#list + 1] = math.min(count, MAX_COUNT)
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

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    local ring = cells_of(value)
    local _, current = follow_clock(ring, STRICT)
    return cells_sum(ring, current)
  end

  return { read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used }
end

-- == Permits: a limit on concurrency ===========================================================================
--
-- Permits are not used up but held: by an id, until it releases them or its lease expires. A check with an id that holds
-- permits already replaces them, so a client that got no reply can send the check again without being counted twice.
--
--   value   number, sum of costs, entries: expires, cost, id       1 + 7 + n · (7 + 4 + 16) bytes
--
-- There may be thousands of holders, so the script does not visit each: the sum is stored, expired entries are at the front
-- because all leases have the same length, and an id is found by a search of the bytes.

local function permits()
  local HEAD, ENTRY = 8, 27

  local function entry(expires, cost, id)
    return struct.pack('>I7I4', expires, cost) .. id
  end

  -- The entries that have not expired, and the sum of their costs.
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

  -- When the last entry expires.
  local function last_expiry(entries)
    return entries == '' and 0 or struct.unpack('>I7', entries, #entries - ENTRY + 1)
  end

  -- The entries, none of which expires later than a lease from now.
  local function shortened(entries, lease)
    local parts = {}
    for at = 1, #entries, ENTRY do
      local expires, cost = struct.unpack('>I7I4', entries, at)
      parts[#parts + 1] = entry(math.min(expires, now + lease), cost, string.sub(entries, at + 11, at + ENTRY - 1))
    end
    return table.concat(parts)
  end

  -- The position of the entry of the id, and its cost; nil and 0 if there is none.
  local function own_entry(rule)
    local at = 0
    repeat
      at = rule.id and string.find(rule.entries, rule.id, at + 1, true)
    until not at or at % ENTRY == 12 -- at the position of an id, and not other bytes that happen to match
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
    if last_expiry(rule.entries) > now + rule.lease then -- the clock stepped back, or the lease became shorter
      rule.entries, rule.repaired = shortened(rule.entries, rule.lease), true
    end
  end

  local function left(rule)
    return at_least_zero(rule.limit - rule.sum)
  end

  -- How many the id could hold: the permits it holds already are available to it.
  local function available(rule)
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
    local free = available(rule)
    if cost > free then
      return BUSY, left(rule), 0, 0
    end
    return ALLOWED, free - cost, 0, 0
  end

  -- Removes the entry at a position.
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

  -- Extends the permits of the id by another lease, if it still holds any.
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

  local function max_cost(rule)
    return rule.limit
  end

  local function used(value)
    local _, sum = living(value)
    return sum
  end

  return {
    read = read, peek = peek, force = force, refund = refund, store = store, max_cost = max_cost, used = used,
    available = available, renew = renew,
  }
end

-- == Algorithms by layout number ===============================================================================

local ALGORITHMS = {
  [0] = token_bucket, nginx_queue, stepped_bucket, fixed_window, fixed_window, sliding_log, sliding_window, permits,
}
local created = {}

-- The functions of the algorithm whose values have this layout.
local function algorithm(layout)
  local create = ALGORITHMS[layout]
  created[create] = created[create] or create()
  return created[create]
end

-- The layout number of a value; nil if no algorithm writes values with this first byte and length.
local function layout_of(value)
  local first, length = string.byte(value) or 0, #value
  local layout = math.floor(first / 32)
  local low = first - 32 * layout -- in layouts 0 and 3 part of an instant, elsewhere 0, or 1 with a high-water mark
  local fits
  if layout == 0 then
    fits = length == 12 or (length >= 21 and length % 27 == 21) or (length >= 35 and length % 27 == 8)
  elseif layout <= 2 then
    fits = low == 0 and length == 15
  elseif layout == 3 then
    fits = length == 12 or length == 14
  elseif layout == 4 then
    fits = low == 0 and length == 22
  elseif layout == 5 then
    fits = length % 7 == 1 and (low == 0 or low == 1 and length >= 8)
  elseif layout == 6 then
    fits = low == 0 and length >= 17 and length % 4 == 1 or (low == 1 and length >= 24 and length % 4 == 0)
  else
    fits = low == 0 and length % 27 == 8
  end
  return fits and layout or nil
end

-- Charges what another algorithm counted as used, as if it had been used now, as far as the rule can hold it.
local function carry_over(rule, used)
  local id, own = rule.id, rule.algorithm
  own.read(rule, nil)
  rule.id = string.rep('\0', 16) -- permits carried over have no holder; they expire after one lease
  own.force(rule, math.min(used, own.max_cost(rule), 4294967295))
  rule.id, rule.repaired = id, true
end

-- == Arguments =================================================================================================

local VERSION = '1' -- of the wire: keys, arguments, replies and values. The fast paths and key names carry it too
local OPERATIONS = 'check, peek, take, force, refund, rollback, reset, renew, release, lease, return'
local MAX_COST = 4294967295

local function quoted(text)
  local shown = string.gsub(string.sub(text, 1, 40), '[%c\127-\255]', '?')
  return "'" .. shown .. (#text > 40 and '…' or '') .. "'"
end

local function invalid(found, expected)
  return redis.error_reply('ERR tidegate: ' .. found .. '; expected ' .. expected)
end

local function in_range(number, least, largest)
  return number ~= nil and number >= least and number <= largest and number % 1 == 0
end

local function named(rule)
  return string.format('rule %d is %s', rule.position, quoted(rule.letter))
end

-- Decodes the numbers after the letter of a rule. Each is given as its name, the least and the largest value. Returns what was
-- found and what was expected if they are wrong.
local function decode_numbers(rule, text, ...)
  local fields = { ... }
  if #text ~= 1 + 8 * #fields / 3 then
    return string.format('%s and %d bytes', named(rule), #text - 1),
      string.format('%d bytes after the letter, 8 for each number', 8 * #fields / 3)
  end
  for i = 1, #fields, 3 do
    local field, least, largest = fields[i], fields[i + 1], fields[i + 2]
    local number = struct.unpack('>I8', text, 8 * (i - 1) / 3 + 2)
    if not in_range(number, least, largest) then
      return string.format('%s with %s %.0f', named(rule), field, number),
        string.format('%s from %.0f to %.0f', field, least, largest)
    end
    rule[field] = number
  end
end

-- Decodes a rule and sets the layout of its values. Returns what was found and what was expected if it is wrong.
local function decode_rule(rule, text)
  local letter = rule.letter
  if letter == 'b' then
    rule.layout = 0
    return decode_numbers(rule, text, 'p', 1, END, 'q', 1, END, 'burst', 1, END)
  elseif letter == 'q' then
    rule.layout = 0
    return decode_numbers(rule, text, 'p', 1, END, 'q', 1, END, 'full', 1, END, 'free', 1, END)
  elseif letter == 'g' then
    rule.layout = 1
    return decode_numbers(rule, text, 'rate', 1, END, 'burst', 0, END, 'delay', 0, END + 1)
  elseif letter == 's' then
    rule.layout = 2
    return decode_numbers(rule, text, 'step', 1, END, 'period', 1, END, 'offset', 0, END, 'burst', 1, END)
  elseif letter == 'w' then
    rule.layout = 3
    return decode_numbers(rule, text, 'limit', 1, END, 'period', 1, END, 'offset', 0, END)
  elseif letter == 'h' then
    rule.layout = 4
    return decode_numbers(rule, text, 'limit', 1, END, 'period', 1, END)
  elseif letter == 'l' then
    rule.layout = 5
    return decode_numbers(rule, text, 'limit', 1, 16384, 'period', 1, END)
  elseif letter == 'c' then
    rule.layout = 6
    return decode_numbers(rule, text, 'limit', 1, MAX_COST, 'period', 1, END, 'cells', 1, 1000, 'oldest', 0, 2)
  elseif letter == 'n' then
    rule.layout = 7
    return decode_numbers(rule, text, 'limit', 1, MAX_COST, 'lease', 1, END)
  end
  return named(rule), 'one of the letters b, q, g, s, w, h, l, c, n and its numbers'
end

-- Checks what involves two numbers of a rule.
local function check_numbers(rule)
  local product = rule.p and rule.p * (rule.burst or 1) or rule.cells and rule.period * rule.cells or 0
  if product > END then
    return string.format('%s with a product of %.0f', named(rule), product), 'p · burst, or period · cells, below 2^53'
  end
  if rule.offset and rule.offset >= rule.period then
    return string.format('%s with offset %.0f', named(rule), rule.offset), 'an offset below the period'
  end
end

-- Decodes the cost of a rule, with what `rollback` and `lease` add to it. Returns what was expected if it is wrong.
local function decode_cost(rule, operation, text)
  if operation == 'rollback' then
    local cost, charge_ends = string.match(text, '^(%d+) (%d+)$')
    rule.cost, rule.charge_ends = tonumber(cost), tonumber(charge_ends)
    if not in_range(rule.cost, 0, MAX_COST) or not in_range(rule.charge_ends, 0, END) then
      return 'a cost, a space, and an instant'
    end
  elseif operation == 'lease' then
    local cost, stock, ttl, reserve = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
    rule.cost, rule.stock, rule.ttl, rule.reserve = tonumber(cost), tonumber(stock), tonumber(ttl), tonumber(reserve)
    if not in_range(rule.cost, 0, MAX_COST) or not in_range(rule.stock, 0, MAX_COST) or
        not in_range(rule.ttl, 1, LONGEST_LEASE) or not in_range(rule.reserve, 0, MAX_COST) then
      return 'a cost, a stock, a lease time and a number to reserve, separated by spaces'
    end
  else
    rule.cost = tonumber(text)
    if not in_range(rule.cost, 0, MAX_COST) then
      return 'an integer from 0 to 4294967295'
    end
  end
end

-- The version first: another version may have other arguments.
local version, operation = string.match(ARGV[1] or '', '^(%w*):?([a-z]*)$')
if ARGV[1] and (version ~= VERSION or operation == '') then
  return invalid('operation ' .. quoted(ARGV[1]), 'wire version ' .. VERSION .. ', as in ' .. VERSION .. ':check')
end
if #KEYS == 0 or (#ARGV ~= 2 * #KEYS + 1 and #ARGV ~= 2 * #KEYS + 2) then
  return invalid(string.format('%d keys and %d arguments', #KEYS, #ARGV),
    'at least one key; as arguments an operation, a cost and a rule for each key, and for permits and leases an id')
end
if not string.find(', ' .. OPERATIONS .. ',', ', ' .. operation .. ',', 1, true) then
  return invalid('operation ' .. quoted(ARGV[1]), 'one of ' .. OPERATIONS .. ' after ' .. VERSION .. ':')
end

local id = ARGV[2 * #KEYS + 2]
if id and operation == 'lease' and #id % 20 ~= 16 then
  return invalid(string.format('id of %d bytes', #id), '16 unique bytes, and 20 bytes for each older grant')
end
if id and operation ~= 'lease' and #id ~= 16 then
  return invalid(string.format('id %s of %d bytes', quoted(id), #id), '16 unique bytes')
end

local on_lease = operation == 'lease' or operation == 'return'
local on_permits = operation == 'renew' or operation == 'release'
local rules, seen = {}, {}
for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[2 * i + 1]
  local rule = { letter = string.sub(text, 1, 1), key = key, id = id, position = i }
  local expected = decode_cost(rule, operation, ARGV[2 * i])
  if not expected and operation == 'take' and i > 1 and rule.cost ~= rules[1].cost then
    expected = 'the same cost for every rule of a take'
  end
  if expected then
    return invalid(string.format('cost %d is ', i) .. quoted(ARGV[2 * i]), expected)
  end
  if seen[key] then
    return invalid(string.format('key %d is ', i) .. quoted(key) .. ', a duplicate', 'each key once')
  end
  local found
  found, expected = decode_rule(rule, text)
  if not found then
    found, expected = check_numbers(rule)
  end
  if found then
    return invalid(found, expected)
  end
  if on_lease and (rule.letter ~= 'b' or #KEYS > 1) then
    return invalid(string.format('rule %d and operation %s', i, operation), 'a single token bucket')
  end
  local needs_id = on_lease or on_permits or (rule.letter == 'n' and operation ~= 'peek' and operation ~= 'reset')
  if needs_id and not id then
    return invalid(string.format('rule %d and operation %s without an id', i, operation),
      'the id of the permits or the grant as the last argument')
  end
  seen[key], rules[i], rule.algorithm = true, rule, algorithm(rule.layout)
end

-- == Stored states =============================================================================================

local values = redis.call('MGET', unpack(KEYS))
for i, rule in ipairs(rules) do
  local value = values[i] or nil
  local layout = value and layout_of(value)
  if value and not layout then
    return invalid(string.format('key %d, %s, holds %d bytes of unknown content', i, quoted(rule.key), #value),
      'a value written by this script')
  end
  rule.value = value
  if operation ~= 'reset' and layout and algorithm(layout) ~= rule.algorithm then
    carry_over(rule, algorithm(layout).used(value))
  else
    rule.algorithm.read(rule, operation ~= 'reset' and value or nil)
  end
  -- Layout 0 is a token bucket. A reset keeps its live grants, because nodes may still spend their tokens.
  if operation == 'reset' and layout == 0 then
    algorithm(0).forget(rule, value)
  end
end

-- Writes the state of a rule; deletes the key if the state makes no difference.
local function write(rule)
  local value, idle_at = rule.algorithm.store(rule)
  if value and idle_at > now then
    save(rule.key, value, idle_at)
  elseif rule.value then
    redis.call('DEL', rule.key)
  end
end

-- == Operations ================================================================================================

local reply = { now, 1 }

local function set_decision(i, outcome, remaining, wait, reset)
  reply[4 * i - 1], reply[4 * i], reply[4 * i + 1], reply[4 * i + 2] = outcome, remaining, wait, reset
end

-- Decides without charging. Returns whether every rule allows its cost. If one refuses, the rules that allow are reported
-- without the charge.
local function evaluate()
  local allowed = true
  for i, rule in ipairs(rules) do
    set_decision(i, rule.algorithm.peek(rule, rule.cost))
    allowed = allowed and reply[4 * i - 1] < RETRY_AFTER
  end
  for i, rule in ipairs(rules) do
    if not allowed and reply[4 * i - 1] < RETRY_AFTER then
      set_decision(i, rule.algorithm.peek(rule, 0))
    end
  end
  return allowed
end

local function force()
  for i, rule in ipairs(rules) do
    set_decision(i, rule.algorithm.force(rule, rule.cost))
    if rule.cost > 0 then
      write(rule)
    end
  end
end

-- After a refusal: writes states that were repaired. Without this, each refusal would repair them again from the old value,
-- and after a backward step of the clock the key would be refused for as long as the step.
local function write_repaired()
  for _, rule in ipairs(rules) do
    if rule.repaired then
      write(rule)
    end
  end
end

local function check()
  local allowed = evaluate()
  if allowed then
    force()
  else
    write_repaired()
  end
  return allowed
end

-- Charges as much as is available under every rule, at most the cost.
local function take()
  local amount = rules[1].cost
  for _, rule in ipairs(rules) do
    local _, remaining = rule.algorithm.peek(rule, 0)
    local available = rule.algorithm.available
    amount = math.min(amount, available and available(rule) or remaining)
  end
  for _, rule in ipairs(rules) do
    rule.cost = amount
  end
  reply[3 + 4 * #rules] = check() and amount or 0
end

-- Applies a function to each rule, writes those it changed, and reports the result.
local function update(change)
  for i, rule in ipairs(rules) do
    if change(rule) then
      write(rule)
    end
    set_decision(i, rule.algorithm.peek(rule, 0))
  end
end

local function refund(rule)
  return rule.cost > 0 and rule.algorithm.refund(rule, rule.cost)
end

-- Undoes a charge as far as it still counts. Tokens that have refilled since the charge are not refunded, because another
-- request may have used them.
local function rollback(rule)
  local undo = rule.algorithm.rollback or rule.algorithm.refund
  return rule.charge_ends > now and rule.cost > 0 and undo(rule, rule.cost, rule.charge_ends)
end

local function reset()
  return true -- the old state was not read, except for live grants, so the key is written as if only these were used
end

-- Applies a function to the permits that `id` holds. Only concurrency rules (letter 'n') have permits; other rules are
-- reported as 0, 0, 0, 0.
local function update_permits(change)
  for i, rule in ipairs(rules) do
    set_decision(i, ALLOWED, 0, 0, 0)
    if rule.letter == 'n' then
      set_decision(i, change(rule))
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

-- Records what is left of older grants, claims the reservations among them, then grants tokens or reserves them.
-- `id` has 16 bytes for the new grant, then for each older grant 16 bytes of its id and 4 of its unspent tokens.
local function lease(rule)
  local bucket, claimed = rule.algorithm, 0
  local lease_ops = leases(bucket)
  local stock = math.min(rule.stock, bucket.max_cost(rule))
  for at = 17, #id, 20 do
    local older_id = string.sub(id, at, at + 15)
    lease_ops.shrink(rule, older_id, (struct.unpack('>I4', id, at + 16)), 0)
  end
  for at = 17, #id, 20 do
    claimed = claimed + lease_ops.claim(rule, string.sub(id, at, at + 15), stock, rule.ttl)
  end
  local granted, reserved, wait = lease_ops.grant(rule, rule.cost, stock, rule.ttl, string.sub(id, 1, 16), rule.reserve)
  write(rule)
  local _, remaining, _, reset = bucket.peek(rule, 0)
  local outcome = reserved > 0 and ALLOWED_AFTER or granted + claimed > 0 and ALLOWED or RETRY_AFTER
  set_decision(1, outcome, remaining, wait, reset)
  reply[7], reply[8], reply[9] = granted, reserved, claimed
end

-- Ends a grant or a reservation and credits the cost as unspent. An unknown id credits nothing.
local function return_grant(rule)
  leases(rule.algorithm).cancel(rule, id, rule.cost)
  return true
end

if operation == 'check' then
  check()
elseif operation == 'peek' then
  evaluate()
elseif operation == 'take' then
  take()
elseif operation == 'force' then
  force()
elseif operation == 'refund' then
  update(refund)
elseif operation == 'rollback' then
  update(rollback)
elseif operation == 'reset' then
  update(reset)
elseif operation == 'renew' then
  update_permits(renew)
elseif operation == 'release' then
  update_permits(release)
elseif operation == 'return' then
  update(return_grant)
else
  lease(rules[1])
  return reply
end

reply[2] = strictest(reply)
return reply
