-- GcryptCipher for a Wireshark that has none: AES-128 and AES-256 in Galois/Counter Mode (FIPS 197,
-- NIST SP 800-38D), as far as docs/wireshark/vnic.lua uses it. Slow, and for tests only.

local bxor, band, lshift, rshift = bit32.bxor, bit32.band, bit32.lshift, bit32.rshift

GCRY_CIPHER_AES, GCRY_CIPHER_AES256, GCRY_CIPHER_MODE_GCM = 7, 9, 9

local function xtime(a)
  a = a * 2
  if a >= 256 then a = bxor(a, 0x11b) end
  return a
end

local sbox = { [0] = 0x63 }
do
  local p, q = 1, 1 -- p runs over the powers of 3, q is the inverse of p
  local function rotl(x, n) return band(bxor(lshift(x, n), rshift(x, 8 - n)), 0xff) end
  repeat
    p = bxor(p, xtime(p))
    q = band(bxor(q, lshift(q, 1)), 0xff)
    q = band(bxor(q, lshift(q, 2)), 0xff)
    q = band(bxor(q, lshift(q, 4)), 0xff)
    if q >= 0x80 then q = bxor(q, 0x09) end
    sbox[p] = bxor(q, rotl(q, 1), rotl(q, 2), rotl(q, 3), rotl(q, 4), 0x63)
  until p == 1
end

-- expand returns the round keys, one byte after the other from 1.
local function expand(key)
  local nk = #key / 4
  local w = { table.unpack(key) }
  local rcon = 1
  for i = nk, 4 * (nk + 7) - 1 do
    local t = { w[4 * i - 3], w[4 * i - 2], w[4 * i - 1], w[4 * i] }
    if i % nk == 0 then
      t = { bxor(sbox[t[2]], rcon), sbox[t[3]], sbox[t[4]], sbox[t[1]] }
      rcon = xtime(rcon)
    elseif nk > 6 and i % nk == 4 then
      for j = 1, 4 do t[j] = sbox[t[j]] end
    end
    for j = 1, 4 do w[4 * i + j] = bxor(w[4 * (i - nk) + j], t[j]) end
  end
  return w, nk + 6
end

local function encrypt_block(w, rounds, block)
  local s = {}
  for i = 1, 16 do s[i] = bxor(block[i], w[i]) end
  for round = 1, rounds do
    local t = {}
    for i = 0, 15 do t[i + 1] = sbox[s[(i + 4 * (i % 4)) % 16 + 1]] end -- SubBytes, ShiftRows
    if round < rounds then
      for c = 1, 13, 4 do -- MixColumns
        local a, b, d, e = t[c], t[c + 1], t[c + 2], t[c + 3]
        t[c] = bxor(xtime(a), xtime(b), b, d, e)
        t[c + 1] = bxor(a, xtime(b), xtime(d), d, e)
        t[c + 2] = bxor(a, b, xtime(d), xtime(e), e)
        t[c + 3] = bxor(xtime(a), a, b, d, xtime(e))
      end
    end
    for i = 1, 16 do s[i] = bxor(t[i], w[16 * round + i]) end
  end
  return s
end

-- multiply is the product of two blocks in GF(2^128).
local function multiply(x, y)
  local z, v = {}, { table.unpack(y) }
  for i = 1, 16 do z[i] = 0 end
  for i = 1, 16 do
    for bit = 7, 0, -1 do
      if band(x[i], 2 ^ bit) ~= 0 then
        for j = 1, 16 do z[j] = bxor(z[j], v[j]) end
      end
      local out = v[16] % 2
      for j = 16, 2, -1 do v[j] = bxor(rshift(v[j], 1), v[j - 1] % 2 * 128) end
      v[1] = bxor(rshift(v[1], 1), out * 0xe1)
    end
  end
  return z
end

local function bytes(array)
  local b = {}
  for i = 1, array:len() do b[i] = array:get_index(i - 1) end
  return b
end

local function pack(b)
  local text = {}
  for i = 1, #b do text[i] = string.format("%02x", b[i]) end
  return ByteArray.new(table.concat(text))
end

local methods = {}

function methods:setkey(key)
  local b = bytes(key)
  assert(#b == self.keylen, "key of another length")
  self.w, self.rounds = expand(b)
end

function methods:setiv(iv)
  assert(iv:len() == 12, "IV of another length")
  self.counter = bytes(iv)
  for i = 13, 15 do self.counter[i] = 0 end
  self.counter[16] = 1
end

function methods:authenticate(data) self.aad = bytes(data) end

function methods:decrypt(out, data)
  assert(out == nil, "decrypts to a new array only")
  local sealed, clear = bytes(data), {}
  local counter = { table.unpack(self.counter) }
  for at = 1, #sealed, 16 do
    for i = 16, 13, -1 do
      counter[i] = (counter[i] + 1) % 256
      if counter[i] ~= 0 then break end
    end
    local stream = encrypt_block(self.w, self.rounds, counter)
    for i = at, math.min(at + 15, #sealed) do clear[i] = bxor(sealed[i], stream[i - at + 1]) end
  end
  self.sealed = sealed
  return pack(clear)
end

function methods:checktag(tag)
  local zero = {}
  for i = 1, 16 do zero[i] = 0 end
  local h, sum = encrypt_block(self.w, self.rounds, zero), { table.unpack(zero) }
  local function add(b)
    for at = 1, #b, 16 do
      for i = 1, 16 do sum[i] = bxor(sum[i], b[at + i - 1] or 0) end
      sum = multiply(sum, h)
    end
  end
  local function length(n) return 0, 0, 0, 0, 0, band(rshift(n, 13), 0xff), band(rshift(n, 5), 0xff), band(lshift(n, 3), 0xff) end
  add(self.aad)
  add(self.sealed)
  local last = { length(#self.aad) }
  for i, v in ipairs({ length(#self.sealed) }) do last[8 + i] = v end
  add(last)
  local mask, want = encrypt_block(self.w, self.rounds, self.counter), bytes(tag)
  for i = 1, 16 do
    if bxor(sum[i], mask[i]) ~= want[i] then return 10, "Checksum error" end
  end
  return 0, "Success"
end

GcryptCipher = {}

function GcryptCipher.open(algorithm, mode, flags)
  assert(mode == GCRY_CIPHER_MODE_GCM and flags == 0)
  local keylen = ({ [GCRY_CIPHER_AES] = 16, [GCRY_CIPHER_AES256] = 32 })[algorithm]
  return setmetatable({ keylen = assert(keylen, "algorithm") }, { __index = methods })
end
