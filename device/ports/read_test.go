package ports

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// TestReadTakesWhatIsThere checks that the shard gets each frame with its port, in order and
// complete. Ports without frames are not read, and without ports there is no descriptor to wait
// for.
func TestReadTakesWhatIsThere(t *testing.T) {
	w := newWorld(t, 0, 3)
	if w.set.FD() != w.set.epoll {
		t.Error("the thread does not wait for ports")
	}
	if came := w.read(); came != "" {
		t.Errorf("%s from nobody", came)
	}
	w.devs[2].put([]byte("the first frame"))
	w.devs[2].put([]byte("the second"))
	w.devs[0].put([]byte("another port's"))
	if came := w.read(); came != "2:15 2:10 0:14" {
		t.Errorf("came %s", came)
	}
	var got []string
	for _, in := range w.set.in {
		got = append(got, string(in.Frame))
	}
	if !slices.Equal(got, []string{"the first frame", "the second", "another port's"}) {
		t.Errorf("%q", got)
	}
	if came := w.read(); came != "" {
		t.Errorf("%s came again", came)
	}
	if n := w.set.Deadline(); n != vtime.Never {
		t.Errorf("something is due at %d, and no port is paused", n)
	}

	none := newWorld(t, 0, 0)
	if came := none.read(); came != "" || none.set.FD() != -1 {
		t.Errorf("without ports: %q, descriptor %d", came, none.set.FD())
	}
}

// TestBusyShardReadsNothing checks that nothing is read while frames are being sealed, and that the
// thread does not wait for ports then.
func TestBusyShardReadsNothing(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.devs[0].put(make([]byte, 60))
	w.read() // and polls that guest from now on
	w.occupy(1)
	w.devs[0].put(make([]byte, 100))
	w.devs[1].put(make([]byte, 100))
	w.says()
	if came := w.read(); came != "" || w.set.FD() != -1 {
		t.Errorf("%q read, descriptor %d", came, w.set.FD())
	}
	if w.set.Arm() || w.said != nil || !w.told() {
		t.Errorf("what waits is not left for later: %q", w.said)
	}
	w.shard.Queue().Taken(len(w.shard.Queue().Pending()))
	w.turn()
	if came := w.read(); came != "1:100 0:100" || w.set.FD() != w.set.epoll {
		t.Errorf("%q read afterwards, descriptor %d", came, w.set.FD())
	}
}

// repeat returns n frames of a size.
func repeat(n, size int) []int { return slices.Repeat([]int{size}, n) }

// TestPortsShareATurn checks that ports with frames share a turn, and that what one port does not
// use goes to the others. A port that was not read to the end may have more.
func TestPortsShareATurn(t *testing.T) {
	for _, c := range []struct {
		what  string
		ports [][]int // sizes of their frames
		read  []int   // number of frames read of each
		more  bool
	}{
		{"nothing but a frame", [][]int{{100}}, []int{1}, false},
		{"one byte short of all", [][]int{{60_000, 60_000, 60_000, 59_999}}, []int{4}, false},
		{"all of it", [][]int{{60_000, 60_000, 60_000, 60_000, 60}}, []int{4}, true},
		{"one byte short, and another frame", [][]int{{60_000, 60_000, 60_000, 59_999, 60, 60}}, []int{5}, true},
		{"half each", [][]int{repeat(4, 60_000), repeat(4, 60_000)}, []int{2, 2}, true},
		{"one needs little", [][]int{repeat(5, 60_000), {60}}, []int{4, 1}, true},
		{"the last needs much", [][]int{{60}, repeat(5, 60_000)}, []int{1, 4}, true},
		{"all are read to the end", [][]int{{50_000, 29_999}, {79_999}, {60}}, []int{2, 1, 1}, false},
		{"small ones beside long ones", [][]int{repeat(portBatch, 60), repeat(4, 60_000)}, []int{portBatch / 2, 2}, true},
	} {
		w := newWorld(t, 0, len(c.ports))
		for i, sizes := range c.ports {
			w.devs[i].fill(sizes...)
		}
		w.read()
		for i, n := range c.read {
			if left := len(c.ports[i]) - n; len(w.devs[i].frames) != left {
				t.Errorf("%s: port %d has %d frames left, want %d", c.what, i, len(w.devs[i].frames), left)
			}
		}
		for _, mayWait := range []bool{true, false} { // whether the last frame for the uplink is a port's
			w.shard.Queue().MayWait = mayWait
			if w.set.More() != (mayWait && c.more) {
				t.Errorf("%s: more may follow: %v, want %v", c.what, w.set.More(), c.more)
			}
		}
	}
}

// TestMoreReportsTheLastTurn checks that a turn that reads little replaces what More reported
// before.
func TestMoreReportsTheLastTurn(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.devs[0].fill(60_000, 60_000, 60_000, 60_000, 60)
	for _, want := range []bool{true, false} {
		w.read()
		if w.shard.Queue().MayWait = true; w.set.More() != want {
			t.Errorf("more may follow: %v, want %v", !want, want)
		}
	}
}

// TestFramesInATurn checks that a turn reads no more frames than the shard has room for, however
// small they are.
func TestFramesInATurn(t *testing.T) {
	w := newWorld(t, 0, 2)
	w.devs[0].fill(repeat(portBatch-1, 60)...)
	w.devs[1].fill(repeat(portBatch, 60)...)
	for i, want := range []int{portBatch, portBatch - 1, 0} { // both have their part in each turn
		if n := len(strings.Fields(w.read())); n != want {
			t.Errorf("turn %d: %d frames, want %d", i, n, want)
		}
	}
}

// TestPortsShareWhatTheyCost checks for any frames (small ones, long ones, or GSO frames of very
// many packets) that a turn exceeds its limit by at most one frame, that ports which always have
// frames get equal parts, and that a frame of a quiet port waits for at most one quantum of each
// other port.
func TestPortsShareWhatTheyCost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "ports")
		polled := rapid.IntRange(0, n+1).Draw(rt, "that are looked at")
		w := newWorld(t, polled, n+1-polled)
		defer w.close()
		quiet := w.devs[rapid.IntRange(0, n).Draw(rt, "the quiet one")]
		took, most := make([]int, n+1), 0
		size, offload := make([]int, n+1), make([]gateway.Offload, n+1)
		for i := range w.devs {
			size[i] = rapid.SampledFrom([]int{60, 1500, 9000, 65_000}).Draw(rt, "size")
			offload[i].Size = rapid.SampledFrom([]uint16{0, 48, 1400}).Draw(rt, "packets of")
			most = max(most, costOf(size[i], &offload[i]))
		}
		waited := -1 // cost of the others since the quiet port's frame came
		for turn := range 100 {
			for i, d := range w.devs {
				for d != quiet && len(d.frames) < portBatch {
					d.offload = offload[i]
					d.fill(size[i])
				}
			}
			if turn > 20 && turn%10 == 0 {
				quiet.fill(60)
				waited = 0
			}
			spent := 0
			if w.read(); len(w.set.in) > portBatch {
				rt.Fatalf("%d frames in a turn", len(w.set.in))
			}
			for k := range w.set.in {
				in := &w.set.in[k]
				cost := costOf(len(in.Frame), &in.Offload)
				if spent >= portBurst {
					rt.Fatalf("a turn goes on after %d", spent)
				}
				spent += cost
				i := slices.IndexFunc(w.ports, func(p *shard.Port) bool { return p.Endpoint == in.From })
				if w.devs[i] == quiet {
					waited = -1
				} else if took[i] += cost; waited >= 0 {
					waited += cost
				}
			}
			if bound := n * (portQuantum + most); waited > bound {
				rt.Fatalf("a frame waited for %d of others, bound %d", waited, bound)
			}
		}
		for i, a := range took {
			for k, b := range took {
				if w.devs[i] != quiet && w.devs[k] != quiet && a-b > 2*(portQuantum+most) {
					rt.Fatalf("one got %d, another %d", a, b)
				}
			}
		}
	})
}

// TestRoomForFrames checks that a turn has room for the longest frame until its end, to the byte:
// none is ever cut.
func TestRoomForFrames(t *testing.T) {
	w := newWorld(t, 0, 1)
	longest := slices.Repeat([]byte("x"), tap.FunctionBuffer)
	w.devs[0].put(make([]byte, portBurst-3*tap.FunctionBuffer-1))
	for range 4 {
		w.devs[0].put(longest)
	}
	w.read()
	if n := len(w.set.in); n != 5 {
		t.Fatalf("%d frames", n)
	}
	for i, in := range w.set.in[1:] {
		if string(in.Frame) != string(longest) {
			t.Errorf("frame %d was cut or overwritten", i)
		}
	}
}

// TestRoomForRest checks that the part of a frame left in the guest's memory has room behind the
// copied part, counts for the port's share, and is given back when the turn is over.
func TestRoomForRest(t *testing.T) {
	w := newWorld(t, 1, 0)
	d := w.devs[0]
	for range 4 {
		d.leave(make([]byte, 60_000), 256)
	}
	d.put([]byte("one more"))
	if came := w.read(); came != "0:60000 0:60000 0:60000 0:60000" {
		t.Fatalf("came %s", came)
	}
	for i, in := range w.set.in {
		if len(in.Frame) != 256 || cap(in.Frame) != 60_000 || in.Rest.Len() != 60_000-256 {
			t.Errorf("frame %d: %d bytes copied, room for %d, %d left", i, len(in.Frame), cap(in.Frame), in.Rest.Len())
		}
		for k := range in.Frame[:cap(in.Frame)] { // nothing else is there
			if in.Frame[:cap(in.Frame)][k] == 'x' {
				t.Fatalf("frame %d lies over another", i)
			}
			in.Frame[:cap(in.Frame)][k] = 'x'
		}
	}
	if said := strings.Join(w.says(), ", "); said != "wake pf0.vf1" {
		t.Errorf("its guest heard %s before the turn is over", said)
	}
	w.set.Write()
	if said := strings.Join(w.says(), ", "); said != "return pf0.vf1" {
		t.Errorf("its guest heard %s", said)
	}
	w.set.Write()
	if w.said != nil {
		t.Errorf("its guest heard %q, and had nothing read", w.said)
	}
}

// TestManyPortsAreReadInTurns checks that a turn reads some of many ports that signalled, and the
// next turn the others, and that polled ports have their own share.
func TestManyPortsAreReadInTurns(t *testing.T) {
	const telling, polled = portReady + 3, 5
	w := newWorld(t, polled, telling)
	for _, d := range w.devs[:polled] {
		d.put(make([]byte, 60)) // each signals for the first time
	}
	if n := len(strings.Fields(w.read())); n != polled {
		t.Fatalf("%d frames of %d ports that are to be looked at", n, polled)
	}
	for _, d := range w.devs {
		d.put(make([]byte, 60))
	}
	for i, want := range []int{portReady + polled, 3} {
		if n := len(strings.Fields(w.read())); n != want {
			t.Errorf("turn %d: %d frames, want %d", i, n, want)
		}
	}
}

// TestBrokenPortIsLost checks that a device that fails is taken out of service and logged once.
// Frames read before are not lost, and the other ports go on.
func TestBrokenPortIsLost(t *testing.T) {
	for _, polled := range []int{0, 2} {
		w := newWorld(t, polled, 2-polled)
		w.devs[0].put(make([]byte, 61))
		w.devs[0].broken = errors.New("it is gone")
		for _, want := range []string{"0:61 1:60", "1:60", "1:60"} {
			w.devs[1].put(make([]byte, 60))
			if came := w.read(); came != want {
				t.Errorf("%q came, want %s", came, want)
			}
		}
		if !w.ports[0].Lost || w.ports[1].Lost {
			t.Errorf("lost: %v and %v, want the first", w.ports[0].Lost, w.ports[1].Lost)
		}
		if n := strings.Count(w.log.String(), "it is gone"); n != 1 || !strings.Contains(w.log.String(), "pf0.vf1") {
			t.Errorf("said %d times: %s", n, w.log.String())
		}
		if w.devs[0].signal(true); w.told() {
			t.Error("what is gone is still waited for")
		}
	}
}
