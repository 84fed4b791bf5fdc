package conform

import (
	"bytes"
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var streamChecks = []check{
	{"hello.version", "DEV-104 DEV-202", 0, helloVersion},
	{"hello.longer", "DEV-104", 0, helloLonger},
	{"hello.features", "DEV-202", 0, helloFeatures},
	{"hello.first", "DEV-202", 0, helloFirst},
	{"hello.function", "DEV-203", 0, helloFunction},
	{"hello.busy", "DEV-203", 0, helloBusy},
	{"stream.tags", "DEV-204", 0, streamTags},
	{"stream.unread", "DEV-205 DEV-204", 0, streamUnread},
	{"stream.reserved", "DEV-102", 0, streamReserved},
	{"stream.framing", "DEV-207", 0, streamFraming},
	{"stream.heartbeat", "DEV-209", 0, streamHeartbeat},
	{"stream.end", "DEV-208", 0, streamEnd},
	{"stream.violations", "DEV-105", 0, streamViolations},
}

// greeting returns a hello for the function.
func (t *T) greeting() abi.Hello {
	return abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: t.function, Features: features}
}

func helloVersion(t *T) {
	for _, major := range []uint16{0, abi.VersionMajor + 1, 0xffff} {
		c := t.dial()
		h := t.greeting()
		h.Major = major
		if r := c.hello(h); r.Status != abi.StatusVersionMismatch {
			t.Fatalf("hello with major version %d: %s, want %s", major, r.Status, abi.StatusVersionMismatch)
		}
		c.stream.closed()
	}
	for _, minor := range []uint16{0, 1, 0xffff} {
		c := t.dial()
		h := t.greeting()
		h.Minor = minor
		r := c.hello(h)
		if r.Status != abi.StatusOK || r.Major != abi.VersionMajor || r.Minor > minor {
			t.Fatalf("hello with minor version %d: %s, version %d.%d", minor, r.Status, r.Major, r.Minor)
		}
		if own := uint16(c.register(abi.RegVersion)); r.Minor != min(own, minor) {
			t.Fatalf("hello with minor version %d: %d in use, the device has %d", minor, r.Minor, own)
		}
		c.stream.goodbye()
	}
}

func helloLonger(t *T) {
	c := t.dial()
	h := t.greeting()
	body := make([]byte, abi.HelloSize+24)
	h.Marshal(body)
	copy(body[abi.HelloSize:], bytes.Repeat([]byte{0xa5}, 24))
	c.stream.write(abi.AppendMessage(nil, abi.MsgHello, 7, body))
	var r abi.HelloReply
	t.noError(abi.Decode(c.stream.reply(7, "an answer to a hello with more than this version knows").body, &r))
	if r.Status != abi.StatusOK {
		t.Fatalf("a hello with more than this version knows: %s", r.Status)
	}
}

func helloFeatures(t *T) {
	for _, want := range []uint64{0, features, ^uint64(0)} {
		c := t.dial()
		h := t.greeting()
		h.Features = want
		r := c.hello(h)
		if r.Status != abi.StatusOK || r.Features&^want != 0 {
			t.Fatalf("hello with features %#x: %s, features %#x", want, r.Status, r.Features)
		}
		if offered := c.register(abi.RegFeatures); r.Features != offered&want {
			t.Fatalf("hello with features %#x: %#x in use, the device offers %#x", want, r.Features, offered)
		}
		c.stream.goodbye()
	}
}

func helloFirst(t *T) {
	c := t.dial()
	var r abi.HelloReply
	t.noError(abi.Decode(c.stream.reply(c.stream.send(&abi.RegRead{Offset: abi.RegMagic, Width: 4}), "an answer to a first message that is not a hello").body, &r))
	if r.Status == abi.StatusOK {
		t.Fatalf("a first message that is not a hello is accepted")
	}
	c.stream.closed()
}

func helloFunction(t *T) {
	c := t.attach()
	own := c.number
	if got := uint32(c.register(abi.RegFunction)); got != own {
		t.Fatalf("HelloReply.Function is %#x, RegFunction %#x", own, got)
	}
	c.stream.goodbye()
	c = t.dial()
	h := t.greeting()
	h.Function = own & 0xffff // host 0: this NIC
	if r := c.hello(h); r.Status != abi.StatusOK || r.Function != own {
		t.Fatalf("hello for function %#x with host number 0: %s, function %#x", own, r.Status, r.Function)
	}
	c.stream.goodbye()
	for _, other := range []uint32{own ^ 0x80_0000, 0xfff_ffff} { // another host's, and none at all
		c := t.dial()
		h.Function = other
		if r := c.hello(h); r.Status != abi.StatusDenied && r.Status != abi.StatusNotFound {
			t.Fatalf("hello for function %#x, which is not the caller's: %s", other, r.Status)
		}
		c.stream.closed()
	}
}

func helloBusy(t *T) {
	c := t.attach()
	d := t.dial()
	h := t.greeting()
	h.Function = c.number
	if r := d.hello(h); r.Status != abi.StatusBusy {
		t.Fatalf("a second stream to the function: %s, want %s", r.Status, abi.StatusBusy)
	}
	d.stream.closed()
	c.register(abi.RegState) // the first one goes on
}

func streamTags(t *T) {
	c := t.attach()
	const n = 200
	var out []byte
	for i := range uint64(n) {
		m := abi.Message(&abi.RegRead{Offset: abi.RegMagic, Width: 4})
		if i%2 == 1 {
			m = &abi.Heartbeat{Token: i}
		}
		out = abi.AppendStruct(out, 1000+i, m)
	}
	c.stream.write(out)
	for i := uint64(n); i > 0; i-- { // in any order
		m := c.stream.reply(999+i, "one answer to each request")
		if want := [2]abi.MsgType{abi.MsgRegReply, abi.MsgHeartbeat}[(i-1)%2]; m.Type != want {
			t.Fatalf("request %d is answered by %s, want %s", i, m.Type, want)
		}
	}
	c.stream.never("a second answer", func(m *message) bool { return m.Tag != 0 })
}

// streamUnread sends so many requests at once that the device cannot answer them in time. It cannot
// simply stop reading, because a goroutine of the kit always reads.
func streamUnread(t *T) {
	c := t.attach()
	const n = 5000
	go func() {
		var out []byte
		for i := range uint64(n) {
			out = abi.AppendStruct(out, 1_000_000+i, &abi.RegRead{Offset: abi.RegMagic, Width: 4})
		}
		c.stream.write(out)
	}()
	seen := make([]bool, n)
	for left := n; left > 0; {
		var got []message
		t.until(func() bool {
			got = c.stream.takeAll()
			return len(got) > 0
		}, "%d of %d answers", left, n)
		for _, m := range got {
			i := m.Tag - 1_000_000
			if m.Type != abi.MsgRegReply || i >= n || seen[i] {
				t.Fatalf("%s with tag %d, want one answer to each request", m.Type, m.Tag)
			}
			seen[i] = true
			left--
		}
	}
}

func streamReserved(t *T) {
	c := t.dial()
	h := t.greeting()
	c.answerRaw(&h, func(m *message) {
		if v := binary.LittleEndian.Uint32(m.body[12:]); v != 0 {
			t.Fatalf("HelloReply has %#x in its reserved bytes", v)
		}
	})
	c.features = features & binaryFeatures(c)
	body := make([]byte, abi.RegReadSize+8)
	(&abi.RegRead{Offset: abi.RegMagic, Width: 4}).Marshal(body)
	copy(body[abi.RegReadSize:], "reserved")
	msg := abi.AppendMessage(nil, abi.MsgRegRead, 77, body)
	binary.LittleEndian.PutUint16(msg[6:], 0xffff) // MsgHeader.Flags
	c.stream.write(msg)
	m := c.stream.reply(77, "an answer to a request with reserved bits")
	var r abi.RegReply
	t.noError(abi.Decode(m.body, &r))
	if r.Status != abi.StatusOK || r.Value != abi.Magic {
		t.Fatalf("a request with reserved bits: %s, %#x", r.Status, r.Value)
	}
	if v := binary.LittleEndian.Uint32(m.body[4:]); v != 0 {
		t.Fatalf("RegReply has %#x in its reserved bytes", v)
	}
	c.enable()
	// Reserved bytes of a command, of its parameters and of a doorbell.
	cmd := abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: 4711, Flags: 0xffff}
	copy(cmd.Params[:], bytes.Repeat([]byte{0xee}, len(cmd.Params)))
	index := c.admin.writeRaw(&cmd)
	record := make([]byte, abi.DoorbellSize)
	(&abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index}).Marshal(record)
	record[2], record[12] = 0xff, 0xff
	c.stream.write(abi.AppendMessage(nil, abi.MsgDoorbell, 0, record))
	if e := c.admin.completion(4711); e.Status != abi.StatusOK {
		t.Fatalf("a command with reserved bytes: %s", e.Status)
	}
	r2 := c.qpPair(nil)
	r2.copy(1, 0, 4096, 64)
	e := r2.cq.want(1, abi.WCSuccess)
	e.Tail, e.VendorErr = 0, 0
	var raw, known [abi.CQESize]byte
	copy(raw[:], r2.cq.block.Bytes()[abi.QueueHeaderSize:])
	e.Marshal(known[:])
	for _, i := range []int{34, 35, 36, 37, 38, 39, 44, 45, 46, 47} {
		if raw[i] != 0 {
			t.Fatalf("byte %d of a CQE is reserved and has %#x", i, raw[i])
		}
	}
}

// answerRaw sends a hello and passes the unparsed answer to see.
func (c *client) answerRaw(h *abi.Hello, see func(*message)) {
	m := c.stream.reply(c.stream.send(h), "HelloReply")
	var r abi.HelloReply
	c.t.noError(abi.Decode(m.body, &r))
	if r.Status != abi.StatusOK {
		c.t.Fatalf("hello: %s", r.Status)
	}
	see(&m)
}

func binaryFeatures(c *client) uint64 { return c.register(abi.RegFeatures) }

func streamFraming(t *T) {
	word := binary.LittleEndian.AppendUint32
	for _, bad := range []struct {
		name string
		raw  []byte
	}{
		{"a length of 15", append(word(nil, 15), make([]byte, 12)...)},
		{"a length of 0", append(word(nil, 0), make([]byte, 12)...)},
		{"a length above MaxMessage", append(word(nil, abi.MaxMessage+1), make([]byte, 12)...)},
		{"a RegRead without its body", abi.AppendMessage(nil, abi.MsgRegRead, 5, make([]byte, 7))},
		{"an empty doorbell message", abi.AppendMessage(nil, abi.MsgDoorbell, 0, nil)},
		{"a doorbell message of one and a half records", abi.AppendMessage(nil, abi.MsgDoorbell, 0, make([]byte, 24))},
		{"a message for the device to send", abi.AppendMessage(nil, abi.MsgCQEvent, 0, make([]byte, 4))},
		{"a message of no known type", abi.AppendMessage(nil, 4711, 5, make([]byte, 4))},
		{"a second hello", abi.AppendStruct(nil, 5, &abi.Hello{Major: abi.VersionMajor, Function: abi.FunctionAssigned})},
	} {
		if length := binary.LittleEndian.Uint32(bad.raw); t.onPCI() && int(length) != len(bad.raw) {
			continue // in the control block an entry is a message: DEV-1016
		}
		c := t.attach()
		c.stream.write(bad.raw)
		m := c.stream.wait("MsgError for "+bad.name, func(m *message) bool { return m.Type == abi.MsgError })
		var e abi.ErrorMsg
		t.noError(abi.Decode(m.body, &e))
		if e.Code == abi.StatusOK || abi.Text(e.Reason[:]) == "" {
			t.Fatalf("MsgError for %s has code %s and reason %q", bad.name, e.Code, abi.Text(e.Reason[:]))
		}
		c.stream.closed()
	}
	if c := t.attach(); c.state() != abi.StateReset {
		t.Fatalf("after the stream's end and a new hello the function is in %s", c.state())
	}
}

func streamHeartbeat(t *T) {
	c := t.attach()
	for _, token := range []uint64{0, 1, 0xdead_beef_cafe_f00d} {
		var r abi.Heartbeat
		c.stream.answer(&abi.Heartbeat{Token: token}, &r)
		if r.Token != token {
			t.Fatalf("heartbeat with token %#x is answered with %#x", token, r.Token)
		}
	}
	c.stream.never("a heartbeat of its own", func(m *message) bool { return m.Type == abi.MsgHeartbeat })
}

// streamEnd ends the stream while work is outstanding. After the end the device must not access the
// memory, and the next stream must find nothing of that work.
func streamEnd(t *T) {
	r := t.qpPair()
	for i := range uint64(8) {
		r.copy(i, 0, 32<<10, 16<<10)
	}
	old := r.pdn
	r.stream.goodbye()
	before := bytes.Clone(r.mr.bytes())
	queues := bytes.Clone(r.cq.block.Bytes())
	t.never(func() bool { return !bytes.Equal(before, r.mr.bytes()) || !bytes.Equal(queues, r.cq.block.Bytes()) }, "the device wrote to memory after the end of the stream")
	c := t.attach()
	if s := c.state(); s != abi.StateReset {
		t.Fatalf("after goodbye and a new hello the function is in %s", s)
	}
	if v := c.register(abi.RegAdminSQ); v != 0 {
		t.Fatalf("after goodbye and a new hello RegAdminSQ is %#x", v)
	}
	c.enable()
	c.refuse(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: old}, abi.StatusNotFound)
	c.refuse(abi.AdminOpQueryQP, &abi.QueryQP{QPN: r.a.qpn}, abi.StatusNotFound)
}

// violations returns the violations that the device remembers, or none if it does not support the
// query.
func (c *client) violations() (list []abi.Violation) {
	for {
		var v abi.Violation
		switch st := c.command(abi.AdminOpQueryViolation, &abi.QueryViolation{Index: uint32(len(list))}, &v); st {
		case abi.StatusOK:
			if list = append(list, v); len(list) > 64 {
				c.t.Fatalf("QueryViolation returns more than 64 violations")
			}
		case abi.StatusNotFound:
			return list
		case abi.StatusUnknownCommand:
			c.t.Skipf("the device has no QueryViolation")
		default:
			c.t.Fatalf("QueryViolation %d: %s", len(list), st)
		}
	}
}

func streamViolations(t *T) {
	c := t.ready()
	c.violations()
	c.refuse(abi.AdminOpQueryViolation, &abi.QueryViolation{Index: ^uint32(0)}, abi.StatusNotFound)
	c.writeStatus(abi.RegMagic+2, 4, 0) // DRV-306: there is no such register
	cqs := c.newCQ(4)
	c.ring(abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 0x77_7777, Index: 5}) // DRV-801
	c.allocPD()
	count := map[uint16]uint32{}
	again := func() {
		for _, v := range c.violations() {
			if v.Clause == 0 || v.Count == 0 || int(v.Length) > len(v.Bytes) {
				t.Fatalf("a violation that says nothing: %+v", v)
			}
			count[v.Clause] += v.Count
		}
	}
	c.reset()
	c.enable() // they are kept over resets,
	if again(); count[801] == 0 || count[306] == 0 {
		t.Fatalf("DRV-801 and DRV-306 were broken, QueryViolation tells of %v", count)
	}
	c.stream.goodbye()
	n := count[801]
	clear(count)
	c = t.ready() // and over sessions
	if again(); count[801] != n {
		t.Fatalf("DRV-801 was broken %d times before the new stream, QueryViolation tells of %d", n, count[801])
	}
	_ = cqs
}
