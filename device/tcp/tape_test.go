package tcp_test

import (
	"errors"
	"io"
	"testing"

	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// TestAPacketOfARecordingHasBounds: a recording may come from anybody, and the gateway cuts packets by what TCP
// says of them. A replay reports what no TCP would say as a difference.
func TestAPacketOfARecordingHasBounds(t *testing.T) {
	const most = 1 << 16
	for _, c := range []struct {
		name              string
		segments, segment uint64
		size              int
		good              bool
	}{
		{"a packet", 1, 0, 60, true},
		{"many segments", 40, 1460, 60000, true},
		{"segments of more than a packet", 1, 1 << 40, 60, false},
		{"more segments than a packet has bytes", 1 << 40, 1460, 60, false},
		{"a negative segment", 1, 1 << 63, 60, false},
		{"a negative number of segments", 1 << 63, 1460, 60, false},
		{"no bytes", 1, 0, 0, false},
	} {
		var chunks [][]byte
		r := tape.Record(1<<20, tape.Whole, func(b []byte) []byte {
			if b != nil {
				chunks = append(chunks, b)
			}
			return make([]byte, 0, most)
		})
		r.Ask(tape.StreamPacket)
		for _, v := range []uint64{60, 7, c.segments, c.segment, 0} {
			r.PutUint(v)
		}
		r.PutPart(make([]byte, c.size), c.size)
		r.End()
		is := func() (err error) {
			defer func() {
				if d, ok := recover().(*tape.Difference); ok {
					err = d
				}
			}()
			s := tcp.New(tcp.Config{Wake: func() {}, Tape: tape.Play(tape.Whole, tape.Chunks(chunks))})
			defer s.Close()
			n, d := s.Transmit(make([]byte, most))
			if n != c.size || d != (tcp.Departure{Function: 7, Segments: int(c.segments), Segment: int(c.segment)}) {
				err = errors.Join(io.ErrUnexpectedEOF, err)
			}
			return err
		}()
		if good := is == nil; good != c.good {
			t.Errorf("%s: %v", c.name, is)
		}
	}
}
