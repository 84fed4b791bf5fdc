package vhostuser

import (
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// TestAsk: a question succeeds with the answer of its own that says 0, and with no other.
func TestAsk(t *testing.T) {
	for _, tc := range []struct {
		name           string
		request, reply Request
		flags          uint32
		payload        []byte
		want           string // the answer's payload
		err            string
	}{
		{name: "done", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: u64(0)},
		{name: "refused", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: u64(9), err: "declined with 9"},
		{name: "short", request: SetOwner, reply: SetOwner, flags: FlagReply, payload: []byte{0}, err: "payload of 1 bytes"},
		{name: "of another", request: SetOwner, reply: SetFeatures, flags: FlagReply, payload: u64(0), err: "answered by"},
		{name: "no reply", request: SetOwner, reply: SetOwner, flags: 0, payload: u64(0), err: "answered by"},
		{name: "with data", request: GetVringBase, reply: GetVringBase, flags: FlagReply, payload: []byte("base 7.."), want: "base 7.."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			near, far := sockettest.Pair(t)
			if err := WriteMessage(far, tc.reply, tc.flags, tc.payload); err != nil {
				t.Fatal(err)
			}
			f := frontend{conn: near, limit: time.Minute}
			got, err := f.ask(tc.request, u64(5))
			if string(got) != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q, %v; want %q, error %q", got, err, tc.want, tc.err)
			}
			m, err := ReadMessage(far)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if m.Request != tc.request || m.Flags != FlagVersion|FlagNeedReply || string(m.Payload) != string(u64(5)) {
				t.Errorf("asked %+v", m.Header)
			}
		})
	}
	near, far := sockettest.Pair(t)
	far.Close()
	f := frontend{conn: near, limit: time.Minute}
	if _, err := f.ask(SetOwner, nil); err == nil {
		t.Error("asked nobody without an error")
	}
	near.Close()
	if _, err := f.ask(SetOwner, nil); err == nil {
		t.Error("asked over a closed socket without an error")
	}
}
