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
