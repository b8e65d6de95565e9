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
