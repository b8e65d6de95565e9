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
