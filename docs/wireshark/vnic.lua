-- Wireshark dissectors of what crosses the fabric between two vnic NICs: PSP on UDP port 1000, Falcon
-- as IP protocol 252, RDMA over Falcon. docs/wire.md has the formats and their sources.
--
--   wireshark -X lua_script:docs/wireshark/vnic.lua FILE
--
-- Clear packets are shown whole. Of sealed ones the PSP header and what the crypt offset leaves
-- readable are shown: the inner IP header and Falcon's connection id. Those whose key is in the key log
-- (preference psp.keylog: the file that psp.keylog of a NIC's configuration names) are decrypted, where
-- this Wireshark's Lua has GcryptCipher.
--
-- For Wireshark and tshark 4.0 with Lua 5.2 and later. Every header is taken only where the packet has
-- all of its bytes; what is missing or wrong is a note in the tree.

local psp = Proto("psp", "PSP Security Protocol")
local falcon = Proto("falcon", "Falcon Transport")
local rdma = Proto("rdma", "RDMA over Falcon")

local truncated = ProtoExpert.new("falcon.truncated", "Packet ends before its headers do", expert.group.MALFORMED, expert.severity.ERROR)
local malformed = ProtoExpert.new("falcon.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local mismatch = ProtoExpert.new("falcon.mismatch", "Inconsistent", expert.group.PROTOCOL, expert.severity.WARN)
falcon.experts = { truncated, malformed, mismatch }

-- Names

local psp_versions = { [0] = "AES-GCM-128", "AES-GCM-256", "AES-GMAC-128", "AES-GMAC-256" }
local next_headers = { [4] = "IPv4", [41] = "IPv6", [252] = "Falcon" }
local protocols = { [2] = "RDMA", [3] = "NVMe" }

local PULL_REQUEST, PULL_DATA, PUSH_DATA, RESYNC, NACK, BACK, EACK = 0, 3, 5, 6, 8, 9, 10
local types = {
  [PULL_REQUEST] = "PullRequest", [PULL_DATA] = "PullData", [PUSH_DATA] = "PushData", [RESYNC] = "Resync",
  [NACK] = "NACK", [BACK] = "BACK", [EACK] = "EACK",
}
local lengths = { -- of the headers, bytes
  [PULL_REQUEST] = 32, [PULL_DATA] = 24, [PUSH_DATA] = 28, [RESYNC] = 32, [NACK] = 40, [BACK] = 32, [EACK] = 72,
}
local nack_codes = {
  [1] = "resource drop", [2] = "receiver not ready", [4] = "xLR drop", [6] = "complete in error",
  [7] = "non-recoverable error", [8] = "invalid CID",
}
local resync_codes = {
  "complete in error", "local xLR", "retransmissions exhausted", "transaction timed out", "remote xLR",
  "non-recoverable error", "invalid CID",
}
local rnr_timeouts = { -- units of 10 µs (Falcon §7.8)
  [0] = 65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
  256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}
local syndromes = {
  [0] = "none", [0x60] = "sequence error", [0x61] = "invalid request", [0x62] = "remote access error",
  [0x63] = "remote operational error", [0x6f] = "queue pair not serving",
}
for i = 0, 31 do syndromes[0x20 + i] = "receiver not ready" end

-- Fields

local pf = {
  next_header = ProtoField.uint8("psp.next_header", "Next Header", base.DEC, next_headers),
  ext_len = ProtoField.uint8("psp.ext_len", "Header Extension Length", base.DEC, nil, nil, "Units of 8 bytes beyond the first 8"),
  crypt_offset = ProtoField.uint8("psp.crypt_offset", "Crypt Offset", base.DEC, nil, 0x3f, "Words of 4 bytes in clear behind the first 16 bytes"),
  sample = ProtoField.bool("psp.sample", "Sample", 8, nil, 0x80),
  drop = ProtoField.bool("psp.drop", "Drop", 8, nil, 0x40),
  version = ProtoField.uint8("psp.version", "Version", base.DEC, psp_versions, 0x3c),
  has_vc = ProtoField.bool("psp.has_vc", "Virtualization Cookie present", 8, nil, 0x02),
  spi = ProtoField.uint32("psp.spi", "SPI", base.HEX),
  iv = ProtoField.uint64("psp.iv", "IV", base.DEC, nil, nil, "Picoseconds of the sender's clock"),
  t1 = ProtoField.uint32("psp.t1", "t1", base.DEC, nil, nil, "IV in units of 131.072 ns"),
  tenant = ProtoField.uint32("psp.tenant", "Tenant", base.DEC),
  tunnel = ProtoField.uint32("psp.tunnel", "Tunnel Index", base.DEC),
  src = ProtoField.ipv4("psp.inner.src", "Inner Source"),
  dst = ProtoField.ipv4("psp.inner.dst", "Inner Destination"),
  src6 = ProtoField.ipv6("psp.inner.src6", "Inner Source"),
  dst6 = ProtoField.ipv6("psp.inner.dst6", "Inner Destination"),
  protocol = ProtoField.uint8("psp.inner.protocol", "Inner Protocol", base.DEC, next_headers),
  sealed = ProtoField.bytes("psp.sealed", "Sealed"),
  icv = ProtoField.bytes("psp.icv", "Integrity Check Value"),
}
psp.fields = pf

local ff = {
  version = ProtoField.uint8("falcon.version", "Version", base.DEC, nil, 0xf0),
  cid = ProtoField.uint24("falcon.cid", "Destination CID", base.HEX),
  func = ProtoField.uint24("falcon.function", "Destination Function", base.HEX),
  protocol = ProtoField.uint8("falcon.protocol", "Protocol", base.DEC, protocols, 0xe0),
  type = ProtoField.uint8("falcon.type", "Packet Type", base.DEC, types, 0x1e),
  ar = ProtoField.bool("falcon.ar", "Acknowledge at once", 8, nil, 0x01),
  data_base = ProtoField.uint32("falcon.data_base", "Data Window Base PSN", base.DEC),
  req_base = ProtoField.uint32("falcon.req_base", "Request Window Base PSN", base.DEC),
  psn = ProtoField.uint32("falcon.psn", "PSN", base.DEC),
  rsn = ProtoField.uint32("falcon.rsn", "RSN", base.DEC),
  request_length = ProtoField.uint16("falcon.request_length", "Request Length", base.DEC),
  resync_code = ProtoField.uint8("falcon.resync.code", "Resync Code", base.DEC, resync_codes),
  resync_type = ProtoField.uint8("falcon.resync.type", "Original Packet Type", base.DEC, types, 0xf0),
  vendor = ProtoField.uint32("falcon.resync.vendor", "Vendor Defined", base.HEX),
  t1 = ProtoField.uint32("falcon.t1", "t1", base.DEC, nil, nil, "Units of 131.072 ns"),
  t2 = ProtoField.uint32("falcon.t2", "t2", base.DEC, nil, nil, "Units of 131.072 ns"),
  hops = ProtoField.uint32("falcon.hops", "Forward Hops", base.DEC, nil, 0xf0000000),
  occupancy = ProtoField.uint32("falcon.rx_occupancy", "Receive Buffer Occupancy", base.DEC, nil, 0x0f800000),
  ecn = ProtoField.uint32("falcon.ecn", "ECN Packets Received", base.DEC, nil, 0x007ffe00),
  ack_rue = ProtoField.uint32("falcon.ack.rue", "RUE Info", base.HEX, nil, 0x00fffffc),
  data_own = ProtoField.bool("falcon.own.data", "Out of Data Window", 32, nil, 0x00000002),
  req_own = ProtoField.bool("falcon.own.request", "Out of Request Window", 32, nil, 0x00000001),
  data_ack = ProtoField.bytes("falcon.data_ack", "Data Ack Bitmap"),
  data_rx = ProtoField.bytes("falcon.data_rx", "Data Receive Bitmap"),
  req_ack = ProtoField.bytes("falcon.req_ack", "Request Bitmap"),
  nack_rue = ProtoField.uint32("falcon.nack.rue", "RUE Info", base.HEX, nil, 0x00ffffff),
  nack_psn = ProtoField.uint32("falcon.nack.psn", "NACK PSN", base.DEC),
  nack_code = ProtoField.uint8("falcon.nack.code", "NACK Code", base.DEC, nack_codes),
  nack_rnr = ProtoField.uint8("falcon.nack.rnr", "RNR Timeout", base.DEC, nil, 0x1f),
  nack_window = ProtoField.bool("falcon.nack.request", "Request Window", 8, nil, 0x80),
  nack_ulp = ProtoField.uint8("falcon.nack.ulp", "ULP NACK Code", base.HEX, syndromes),
  payload = ProtoField.bytes("falcon.payload", "Payload"),
  trailing = ProtoField.bytes("falcon.trailing", "Trailing Bytes"),
}
falcon.fields = ff

local rf = {
  version = ProtoField.uint32("rdma.version", "Version", base.DEC, nil, 0xf0000000),
  ce = ProtoField.bool("rdma.ce", "Complete in Error", 32, nil, 0x1000),
  pad = ProtoField.uint32("rdma.pad", "Pad", base.DEC, nil, 0x0c00),
  se = ProtoField.bool("rdma.se", "Solicited Event", 32, nil, 0x0100),
  opcode = ProtoField.uint8("rdma.opcode", "Opcode", base.HEX),
  qp = ProtoField.uint24("rdma.qp", "Destination QP", base.HEX),
  syndrome = ProtoField.uint8("rdma.syndrome", "Syndrome", base.HEX, syndromes),
  sn = ProtoField.uint32("rdma.sn", "Sequence Number", base.DEC),
  xrc_srq = ProtoField.uint24("rdma.xrceth.srq", "XRC SRQ", base.HEX),
  deth_qkey = ProtoField.uint32("rdma.deth.qkey", "Q_Key", base.HEX),
  deth_qp = ProtoField.uint24("rdma.deth.source_qp", "Source QP", base.HEX),
  reth_va = ProtoField.uint64("rdma.reth.va", "Virtual Address", base.HEX),
  reth_rkey = ProtoField.uint32("rdma.reth.rkey", "R_Key", base.HEX),
  reth_len = ProtoField.uint32("rdma.reth.length", "Length", base.DEC),
  atomic_va = ProtoField.uint64("rdma.atomiceth.va", "Virtual Address", base.HEX),
  atomic_rkey = ProtoField.uint32("rdma.atomiceth.rkey", "R_Key", base.HEX),
  atomic_swap = ProtoField.uint64("rdma.atomiceth.swap_add", "Swap or Add Data", base.HEX),
  atomic_cmp = ProtoField.uint64("rdma.atomiceth.compare", "Compare Data", base.HEX),
  mask_swap = ProtoField.uint64("rdma.atomicmasketh.swap_add", "Swap or Add Mask", base.HEX),
  mask_cmp = ProtoField.uint64("rdma.atomicmasketh.compare", "Compare Mask", base.HEX),
  atomic_orig = ProtoField.uint64("rdma.atomicacketh.original", "Original Data", base.HEX),
  rmsn = ProtoField.uint32("rdma.seth.rmsn", "Request Message Sequence Number", base.DEC),
  offset = ProtoField.uint32("rdma.oeth.offset", "Offset in Message", base.DEC),
  sink_va = ProtoField.uint64("rdma.steth.va", "Sink Virtual Address", base.HEX),
  sink_lkey = ProtoField.uint32("rdma.steth.lkey", "Sink L_Key", base.HEX),
  imm = ProtoField.uint32("rdma.immdt", "Immediate Data", base.HEX),
  inv = ProtoField.uint32("rdma.ieth.rkey", "R_Key to invalidate", base.HEX),
  data = ProtoField.bytes("rdma.data", "Data"),
  padding = ProtoField.bytes("rdma.padding", "Padding"),
}
rdma.fields = rf

-- Extended headers: name, length, then field, offset and length of each field.
local XRC = { "XRCETH", 4, { rf.xrc_srq, 0, 3 } }
local DETH = { "DETH", 8, { rf.deth_qkey, 0, 4 }, { rf.deth_qp, 4, 3 } }
local RETH = { "RETH", 16, { rf.reth_va, 0, 8 }, { rf.reth_rkey, 8, 4 }, { rf.reth_len, 12, 4 } }
local ATOMIC = {
  "AtomicETH", 28, { rf.atomic_va, 0, 8 }, { rf.atomic_rkey, 8, 4 }, { rf.atomic_swap, 12, 8 }, { rf.atomic_cmp, 20, 8 },
}
local MASK = { "AtomicMaskETH", 16, { rf.mask_swap, 0, 8 }, { rf.mask_cmp, 8, 8 } }
local ATOMICACK = { "AtomicAckETH", 8, { rf.atomic_orig, 0, 8 } }
local SETH = { "SETH", 4, { rf.rmsn, 0, 4 } }
local OETH = { "OETH", 4, { rf.offset, 0, 4 } }
local STETH = { "STETH", 12, { rf.sink_va, 0, 8 }, { rf.sink_lkey, 8, 4 } }
local IMM = { "ImmDt", 4, { rf.imm, 0, 4 } }
local IETH = { "IETH", 4, { rf.inv, 0, 4 } }

-- Opcodes: name, Falcon packet type, extended headers in their order (RDMA over Falcon §8.1.3).
local opcodes = {
  [0x00] = { "SEND First", PUSH_DATA, SETH, OETH },
  [0x01] = { "SEND Middle", PUSH_DATA, SETH, OETH },
  [0x02] = { "SEND Last", PUSH_DATA, SETH, OETH },
  [0x03] = { "SEND Last with Immediate", PUSH_DATA, SETH, OETH, IMM },
  [0x04] = { "SEND Only", PUSH_DATA, SETH, OETH },
  [0x05] = { "SEND Only with Immediate", PUSH_DATA, SETH, OETH, IMM },
  [0x06] = { "WRITE First", PUSH_DATA, RETH },
  [0x07] = { "WRITE Middle", PUSH_DATA, RETH },
  [0x08] = { "WRITE Last", PUSH_DATA, RETH },
  [0x09] = { "WRITE Last with Immediate", PUSH_DATA, RETH, SETH, IMM },
  [0x0a] = { "WRITE Only", PUSH_DATA, RETH },
  [0x0b] = { "WRITE Only with Immediate", PUSH_DATA, RETH, SETH, IMM },
  [0x0c] = { "READ Request", PULL_REQUEST, RETH, SETH, STETH },
  [0x0d] = { "READ Response First", PULL_DATA, STETH },
  [0x0e] = { "READ Response Middle", PULL_DATA, STETH },
  [0x0f] = { "READ Response Last", PULL_DATA, STETH },
  [0x10] = { "READ Response Only", PULL_DATA, STETH },
  [0x12] = { "ATOMIC Response", PULL_DATA, ATOMICACK, STETH },
  [0x13] = { "CmpSwap", PULL_REQUEST, ATOMIC, SETH, STETH },
  [0x14] = { "FetchAdd", PULL_REQUEST, ATOMIC, SETH, STETH },
  [0x18] = { "Masked CmpSwap", PULL_REQUEST, ATOMIC, MASK, SETH, STETH },
  [0x19] = { "Masked FetchAdd", PULL_REQUEST, ATOMIC, MASK, SETH, STETH },
  [0x16] = { "SEND Last with Invalidate", PUSH_DATA, SETH, OETH, IETH },
  [0x17] = { "SEND Only with Invalidate", PUSH_DATA, SETH, OETH, IETH },
}
local xrc = {} -- the same under InfiniBand's XRC prefix, requests with XRCETH in front
for op, o in pairs(opcodes) do
  local x = { "XRC " .. o[1], o[2] }
  if o[2] ~= PULL_DATA then x[#x + 1] = XRC end
  for i = 3, #o do x[#x + 1] = o[i] end
  xrc[0xa0 + op] = x
end
for op = 0x00, 0x0b do -- SENDs and WRITEs under InfiniBand's UC prefix
  local o = opcodes[op]
  local x = { "UC " .. o[1] }
  for i = 2, #o do x[i] = o[i] end
  opcodes[0x20 + op] = x
end
for op, x in pairs(xrc) do opcodes[op] = x end
opcodes[0x64] = { "UD SEND Only", PUSH_DATA, DETH }
opcodes[0x65] = { "UD SEND Only with Immediate", PUSH_DATA, DETH, IMM }

-- RDMA

-- note puts a remark into the tree and the info column.
local function note(tree, pinfo, expert_info, text)
  tree:add_proto_expert_info(expert_info, text)
  pinfo.cols.info:append(" [" .. text .. "]")
end

-- dissect_rdma takes the upper-layer part of a Falcon packet of the given type, of at least one byte.
local function dissect_rdma(tvb, pinfo, root, packet_type)
  local n = tvb:len()
  pinfo.cols.protocol = "RDMA"
  local tree = root:add(rdma, tvb())
  if n < 12 then
    tree:add(ff.payload, tvb())
    note(tree, pinfo, truncated, "RDMA header truncated")
    return
  end
  local op = tvb(3, 1):uint()
  local o = opcodes[op]
  local name = o and o[1] or string.format("reserved opcode 0x%02x", op)
  local qp = tvb(4, 3):uint()
  local head = tree:add(tvb(0, 12), "RBTH")
  head:add(rf.version, tvb(0, 4))
  head:add(rf.ce, tvb(0, 4))
  head:add(rf.pad, tvb(0, 4))
  head:add(rf.se, tvb(0, 4))
  head:add(rf.opcode, tvb(3, 1)):append_text(" (" .. name .. ")")
  head:add(rf.qp, tvb(4, 3))
  head:add(rf.syndrome, tvb(7, 1))
  head:add(rf.sn, tvb(8, 4))
  tree:append_text(string.format(", %s, QP 0x%06x", name, qp))
  pinfo.cols.info:append(string.format(" %s QP 0x%06x SN %d", name, qp, tvb(8, 4):uint()))
  local word = tvb(0, 4):uint()
  if bit32.btest(word, 0x1000) then pinfo.cols.info:append(" complete in error") end
  if math.floor(word / 0x10000000) ~= 1 then
    note(tree, pinfo, malformed, "RBTH version is not 1")
    return
  end
  if not o then
    tree:add_proto_expert_info(malformed, name)
    return
  end
  if o[2] ~= packet_type then
    note(tree, pinfo, mismatch, "not an opcode of " .. types[packet_type])
  end
  local at = 12
  for i = 3, #o do
    local h = o[i]
    if n < at + h[2] then
      note(tree, pinfo, truncated, h[1] .. " truncated")
      return
    end
    local sub = tree:add(tvb(at, h[2]), h[1])
    for j = 3, #h do
      sub:add(h[j][1], tvb(at + h[j][2], h[j][3]))
    end
    at = at + h[2]
  end
  local pad = math.floor(word / 0x400) % 4
  local len = n - at - pad
  if len < 0 then
    note(tree, pinfo, malformed, "padding without data")
    return
  end
  if len > 0 then
    tree:add(rf.data, tvb(at, len)):append_text(string.format(" (%d bytes)", len))
    pinfo.cols.info:append(string.format(" %d bytes", len))
  end
  if pad > 0 then tree:add(rf.padding, tvb(at + len, pad)) end
end

-- Falcon

-- bits lists the PSNs a bitmap names: bit n, from the least significant of the last byte, is base+n.
local function bits(range, psn_base)
  local b, out, from = range:bytes(), {}, nil
  local count = b:len() * 8
  for i = 0, count do
    local set = i < count and bit32.btest(b:get_index(b:len() - 1 - math.floor(i / 8)), 2 ^ (i % 8))
    if set and not from then from = i end
    if not set and from then
      local first, last = (psn_base + from) % 2 ^ 32, (psn_base + i - 1) % 2 ^ 32
      out[#out + 1] = first == last and string.format("%d", first) or string.format("%d-%d", first, last)
      from = nil
    end
  end
  return #out == 0 and " (none)" or " (PSN " .. table.concat(out, ", ") .. ")"
end

local function add_first_word(tree, tvb)
  tree:add(ff.version, tvb(0, 1))
  tree:add(ff.cid, tvb(1, 3))
end

-- dissect_data takes what follows the base header of packets that carry or ask for data.
local function dissect_data(tvb, pinfo, tree, root, t)
  local at, n = lengths[t], tvb:len()
  if t ~= PULL_DATA then
    tree:add(ff.request_length, tvb(26, 2))
  end
  if t == PUSH_DATA and tvb(26, 2):uint() ~= n - at then
    note(tree, pinfo, mismatch, string.format("Request Length %d, payload %d", tvb(26, 2):uint(), n - at))
  end
  if n == at then return end
  tree:set_len(at)
  local protocol = math.floor(tvb(7, 1):uint() / 32)
  if protocol == 2 then
    dissect_rdma(tvb(at):tvb(), pinfo, root, t)
  else
    root:add(ff.payload, tvb(at))
    pinfo.cols.info:append(" " .. (protocols[protocol] or "reserved protocol " .. protocol))
  end
end

local function dissect_base(tvb, pinfo, tree, root, t)
  local f = tvb(4, 3):uint()
  tree:add(ff.func, tvb(4, 3)):append_text(string.format(" (host %d, PF %d, VF %d)",
    math.floor(f / 0x10000), math.floor(f / 0x1000) % 16, f % 0x1000))
  tree:add(ff.protocol, tvb(7, 1))
  tree:add(ff.type, tvb(7, 1))
  tree:add(ff.ar, tvb(7, 1))
  tree:add(ff.data_base, tvb(8, 4))
  tree:add(ff.req_base, tvb(12, 4))
  tree:add(ff.psn, tvb(16, 4))
  tree:add(ff.rsn, tvb(20, 4))
  pinfo.cols.info:append(string.format(" PSN %d RSN %d", tvb(16, 4):uint(), tvb(20, 4):uint()))
  if t ~= RESYNC then
    return dissect_data(tvb, pinfo, tree, root, t)
  end
  tree:add(ff.resync_code, tvb(24, 1))
  tree:add(ff.resync_type, tvb(25, 1))
  tree:add(ff.vendor, tvb(28, 4))
  local code, original = tvb(24, 1):uint(), math.floor(tvb(25, 1):uint() / 16)
  pinfo.cols.info:append(string.format(" for %s: %s", types[original] or "reserved type " .. original,
    resync_codes[code] or "reserved code " .. code))
end

local function dissect_nack(tvb, pinfo, tree)
  tree:add(ff.nack_rue, tvb(28, 4))
  tree:add(ff.nack_psn, tvb(32, 4))
  tree:add(ff.nack_code, tvb(36, 1))
  local rnr = rnr_timeouts[tvb(37, 1):uint() % 32]
  tree:add(ff.nack_rnr, tvb(37, 1)):append_text(string.format(" (%.2f ms)", rnr / 100))
  tree:add(ff.nack_window, tvb(38, 1))
  tree:add(ff.nack_ulp, tvb(39, 1))
  local code = tvb(36, 1):uint()
  local window = tvb(38, 1):uint() >= 0x80 and "request" or "data"
  pinfo.cols.info:append(string.format(" %s PSN %d %s", window, tvb(32, 4):uint(), nack_codes[code] or "reserved code " .. code))
  if code == 2 then pinfo.cols.info:append(string.format(", retry in %.2f ms", rnr / 100)) end
end

local function dissect_ack(tvb, pinfo, tree, t)
  local own = tvb(31, 1):uint() % 4
  local data_base, req_base = tvb(8, 4):uint(), tvb(12, 4):uint()
  tree:add(ff.ack_rue, tvb(28, 4))
  tree:add(ff.data_own, tvb(28, 4))
  tree:add(ff.req_own, tvb(28, 4))
  pinfo.cols.info:append(string.format(" data base %d request base %d", data_base, req_base))
  if t == EACK then
    local received = bits(tvb(48, 16), data_base)
    local requests = bits(tvb(64, 8), req_base)
    tree:add(ff.data_ack, tvb(32, 16)):append_text(bits(tvb(32, 16), data_base))
    tree:add(ff.data_rx, tvb(48, 16)):append_text(received)
    tree:add(ff.req_ack, tvb(64, 8)):append_text(requests)
    pinfo.cols.info:append(" received data" .. received .. " requests" .. requests)
  end
  if own ~= 0 then
    pinfo.cols.info:append(" OWN" .. (own >= 2 and " data" or "") .. (own % 2 == 1 and " request" or ""))
  end
end

local function dissect_feedback(tvb, pinfo, tree, t)
  tree:add(ff.type, tvb(7, 1))
  tree:add(ff.data_base, tvb(8, 4))
  tree:add(ff.req_base, tvb(12, 4))
  tree:add(ff.t1, tvb(16, 4))
  tree:add(ff.t2, tvb(20, 4))
  tree:add(ff.hops, tvb(24, 4))
  tree:add(ff.occupancy, tvb(24, 4))
  tree:add(ff.ecn, tvb(24, 4))
  if t == NACK then
    dissect_nack(tvb, pinfo, tree)
  else
    dissect_ack(tvb, pinfo, tree, t)
  end
end

function falcon.dissector(tvb, pinfo, root)
  local n = tvb:len()
  if n == 0 then return 0 end
  pinfo.cols.protocol = "Falcon"
  pinfo.cols.info = "Falcon"
  local tree = root:add(falcon, tvb())
  if n < 8 then
    if n >= 4 then add_first_word(tree, tvb) end
    note(tree, pinfo, truncated, "truncated")
    return n
  end
  local t, cid = math.floor(tvb(7, 1):uint() / 2) % 16, tvb(1, 3):uint()
  local name = types[t] or "reserved type " .. t
  tree:append_text(string.format(", %s, CID 0x%06x", name, cid))
  pinfo.cols.info = string.format("%s CID 0x%06x", name, cid)
  add_first_word(tree, tvb)
  if math.floor(tvb(0, 1):uint() / 16) ~= 1 then
    note(tree, pinfo, malformed, "version is not 1")
  elseif not types[t] then
    tree:add(ff.type, tvb(7, 1))
    tree:add_proto_expert_info(malformed, name)
  elseif n < lengths[t] then
    tree:add(ff.type, tvb(7, 1))
    note(tree, pinfo, truncated, "truncated")
  else
    if t < NACK then
      dissect_base(tvb, pinfo, tree, root, t)
    else
      dissect_feedback(tvb, pinfo, tree, t)
    end
    if t >= RESYNC and n > lengths[t] then
      tree:add(ff.trailing, tvb(lengths[t]))
      note(tree, pinfo, mismatch, "trailing bytes")
    end
  end
  return n
end

-- PSP

-- readable shows what the crypt offset leaves in clear of a sealed packet: bytes at to limit. It returns where it ends.
local function readable(tvb, pinfo, tree, next_header, at, limit)
  local protocol = next_header -- of what is behind the inner header
  if next_header == 4 and limit >= at + 20 then
    local ihl = tvb(at, 1):uint() % 16 * 4
    tree:add(pf.src, tvb(at + 12, 4))
    tree:add(pf.dst, tvb(at + 16, 4))
    tree:add(pf.protocol, tvb(at + 9, 1))
    protocol = tvb(at + 9, 1):uint()
    at = at + math.max(ihl, 20)
  elseif next_header == 41 and limit >= at + 40 then
    tree:add(pf.src6, tvb(at + 8, 16))
    tree:add(pf.dst6, tvb(at + 24, 16))
    tree:add(pf.protocol, tvb(at + 6, 1))
    protocol = tvb(at + 6, 1):uint()
    at = at + 40
  end
  if protocol == 252 and limit >= at + 4 then
    add_first_word(tree, tvb(at, 4):tvb())
    pinfo.cols.info:append(string.format(" CID 0x%06x", tvb(at + 1, 3):uint()))
    at = at + 4
  end
  return at
end

psp.prefs.keylog = Pref.string("Key log", "", "File with the keys, as psp.keylog of a NIC's configuration names it")

-- The keys of the log by SPI; different receivers may have given the same one.
local keys = nil

function psp.init() keys = nil end -- a capture is opened: the log may have grown

local function read_keys()
  keys = {}
  local file = psp.prefs.keylog ~= "" and io.open(psp.prefs.keylog)
  if not file then return end
  for line in file:lines() do
    local spi, version, key = line:match("^%a+ (%x+) (%d+) (%x+)")
    if spi then
      spi = tonumber(spi, 16)
      keys[spi] = keys[spi] or {}
      table.insert(keys[spi], { version = tonumber(version), key = key })
    end
  end
  file:close()
end

-- open returns the plain text of what is sealed with a key, bytes clear to body, if it is authentic. The nonce is SPI
-- and IV, which stand side by side; what is in clear is authenticated.
local function open(key, version, tvb, clear, body)
  local cipher = GcryptCipher.open(version == 0 and GCRY_CIPHER_AES or GCRY_CIPHER_AES256, GCRY_CIPHER_MODE_GCM, 0)
  cipher:setkey(ByteArray.new(key))
  cipher:setiv(tvb(4, 12):bytes())
  cipher:authenticate(tvb(0, clear):bytes())
  local plain = cipher:decrypt(nil, tvb(clear, body - clear):bytes())
  return cipher:checktag(tvb(body, 16):bytes()) == 0 and plain or nil
end

-- decrypted returns all behind the first 16 bytes in clear, nil without the key.
local function decrypted(tvb, version, clear, body)
  if not GcryptCipher or version > 1 or clear >= body then return nil end
  if not keys then read_keys() end
  for _, k in ipairs(keys[tvb(4, 4):uint()] or {}) do
    local ok, plain = pcall(open, k.key, version, tvb, clear, body)
    if k.version == version and ok and plain then
      local all = clear > 16 and tvb(16, clear - 16):bytes() or ByteArray.new()
      all:append(plain)
      return all:tvb("Decrypted PSP")
    end
  end
end

function psp.dissector(tvb, pinfo, root)
  local n = tvb:len()
  if n >= 4 and tvb(3, 1):uint() % 2 == 0 then return 0 end -- the bit that is always one
  if n == 0 then return 0 end
  pinfo.cols.protocol = "PSP"
  pinfo.cols.info = "PSP"
  local tree = root:add(psp, tvb())
  if n < 16 then
    note(tree, pinfo, truncated, "truncated")
    return n
  end
  local flags, head = tvb(3, 1):uint(), 8 + tvb(1, 1):uint() * 8
  local has_vc, version = bit32.btest(flags, 2), math.floor(flags / 4) % 16
  tree:add(pf.next_header, tvb(0, 1))
  tree:add(pf.ext_len, tvb(1, 1))
  tree:add(pf.crypt_offset, tvb(2, 1))
  tree:add(pf.sample, tvb(3, 1))
  tree:add(pf.drop, tvb(3, 1))
  tree:add(pf.version, tvb(3, 1))
  tree:add(pf.has_vc, tvb(3, 1))
  tree:add(pf.spi, tvb(4, 4))
  tree:add(pf.iv, tvb(8, 8))
  tree:add(pf.t1, tvb(8, 8), tvb(8, 8):uint64():rshift(17):lower()):set_generated()
  pinfo.cols.info:append(string.format(" SPI 0x%08x", tvb(4, 4):uint()))
  if head ~= (has_vc and 24 or 16) then
    note(tree, pinfo, malformed, "header length does not match the V bit")
    return n
  end
  if n < head + 16 then
    note(tree, pinfo, truncated, "truncated")
    return n
  end
  local body = n - 16
  local clear = math.min(16 + tvb(2, 1):uint() % 64 * 4, body)
  if has_vc and (clear >= 24 or version >= 2) then
    tree:add(pf.tenant, tvb(16, 4))
    tree:add(pf.tunnel, tvb(20, 4))
    pinfo.cols.info:append(string.format(" tenant %d", tvb(16, 4):uint()))
  end
  tree:add(pf.icv, tvb(body, 16))
  local next_header = tvb(0, 1):uint()
  local inner = ({ [4] = "ip", [41] = "ipv6", [252] = "falcon" })[next_header]
  local part = decrypted(tvb, version, clear, body)
  if part and has_vc then
    if clear < 24 then
      tree:add(pf.tenant, part(0, 4))
      tree:add(pf.tunnel, part(4, 4))
    end
    part = part:len() > 8 and part(8):tvb() or nil
  elseif version >= 2 and body > head then -- authenticated, not encrypted
    part = tvb(head, body - head):tvb()
  end
  if part and inner then
    tree:set_len(head)
    local dissector = Dissector.get(inner)
    -- Wireshark's own dissectors raise an error where a packet ends early.
    if not pcall(dissector.call, dissector, part, pinfo, root) then
      note(tree, pinfo, truncated, "inner packet truncated")
    end
    return n
  end
  local at = math.max(readable(tvb, pinfo, tree, next_header, head, clear), head)
  if at < body then
    tree:add(pf.sealed, tvb(at, body - at)):append_text(string.format(" (%d bytes)", body - at))
    pinfo.cols.info:append(string.format(" sealed %d bytes", body - at))
  end
  return n
end

DissectorTable.get("udp.port"):add(1000, psp)
DissectorTable.get("ip.proto"):add(252, falcon)
