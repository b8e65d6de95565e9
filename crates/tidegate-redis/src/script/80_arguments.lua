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
