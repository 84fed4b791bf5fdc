package capture

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
)

// control returns a socket's control message with n bytes of a timestamp.
func control(level, kind int32, seconds, nanoseconds uint64, n int) []byte {
	b := make([]byte, unix.CmsgSpace(n))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(n)))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	stamp := binary.NativeEndian.AppendUint64(nil, seconds)
	stamp = binary.NativeEndian.AppendUint64(stamp, nanoseconds)
	copy(b[unix.CmsgLen(0):], stamp[:n])
	return b
}

// TestArrivalIsTheKernelsTimestampOrNow: the arrival time is the kernel's timestamp or, without one, the present time.
func TestArrivalIsTheKernelsTimestampOrNow(t *testing.T) {
	stamp := control(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1_700_000_000, 123_456_789, 16)
	also := control(unix.SOL_SOCKET, unix.SO_TIMESTAMP, 5, 5, 16)
	for name, tc := range map[string]struct {
		control []byte
		stamped bool
	}{
		"stamped":               {stamp, true},
		"behind another":        {append(control(unix.SOL_PACKET, unix.SO_TIMESTAMPNS, 5, 5, 16), stamp...), true},
		"of another level":      {control(unix.SOL_PACKET, unix.SO_TIMESTAMPNS, 1_700_000_000, 123_456_789, 16), false},
		"of another kind":       {control(unix.SOL_SOCKET, unix.SO_TIMESTAMP, 1_700_000_000, 123_456_789, 16), false},
		"half a stamp":          {control(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1_700_000_000, 123_456_789, 8), false},
		"nothing":               {nil, false},
		"half a message":        {stamp[:10], false},
		"longer than its room":  {stamp[:20], false},
		"a stamp and no others": {append(stamp[:len(stamp):len(stamp)], also...), true},
	} {
		before := time.Now()
		at := arrival(tc.control)
		stamped := at.Equal(time.Unix(1_700_000_000, 123_456_789))
		if stamped != tc.stamped || !stamped && at.Before(before) {
			t.Errorf("%s: %v", name, at)
		}
	}
}

// TestAPacketOfNoInterfaceIsIgnored: a packet of an unknown interface is ignored.
func TestAPacketOfNoInterfaceIsIgnored(t *testing.T) {
	g := newGate()
	c, err := New(g, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	for _, iface := range []int{-1, Clear + 1} {
		c.Packet(iface, In, 1, []byte("frame"), "")
	}
	c.Packet(Clear, In, 1, []byte("frame"), "")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, got := readAll(t, &g.Buffer); len(got) != 1 || c.Drops() != 0 {
		t.Errorf("%q, %d drops", got, c.Drops())
	}
}
