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
