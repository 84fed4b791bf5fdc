package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEachRequestIsAnsweredOnce checks that each request is answered once with its tag, and that a heartbeat comes
// back unchanged (DEV-204, DEV-209).
func TestEachRequestIsAnsweredOnce(t *testing.T) {
	w := newWorld(t)
	c := dialRaw(t, w.sockets[0])
	if r := c.hello(abi.FunctionAssigned); r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	want := map[uint64]abi.MsgType{}
	var ask []byte
	for tag := uint64(100); tag < 130; tag++ {
		switch tag % 3 {
		case 0:
			want[tag], ask = abi.MsgRegReply, abi.AppendStruct(ask, tag, &abi.RegRead{Offset: abi.RegMagic, Width: 4})
		case 1:
			want[tag], ask = abi.MsgRegReply, abi.AppendStruct(ask, tag, &abi.RegWrite{Offset: abi.RegMagic, Width: 4})
		default:
			want[tag], ask = abi.MsgHeartbeat, abi.AppendStruct(ask, tag, &abi.Heartbeat{Token: tag << 20})
		}
	}
	c.send(ask)
	for len(want) > 0 {
		h, body, err := c.receive()
		if err != nil {
			t.Fatal(err)
		}
		if want[h.Tag] != h.Type {
			t.Fatalf("%s with tag %d, want %s", h.Type, h.Tag, want[h.Tag])
		}
		delete(want, h.Tag)
		switch h.Tag % 3 {
		case 0:
			var r abi.RegReply
			if r.Unmarshal(body); r.Value != abi.Magic || r.Status != abi.StatusOK {
				t.Errorf("%+v", r)
			}
		case 2:
			var b abi.Heartbeat
			if b.Unmarshal(body); b.Token != h.Tag<<20 {
				t.Errorf("%+v", b)
			}
		}
	}
}
