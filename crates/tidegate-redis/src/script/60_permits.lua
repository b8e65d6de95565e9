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
