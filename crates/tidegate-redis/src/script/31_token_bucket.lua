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
