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
