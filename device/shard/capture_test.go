package shard

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// commentsOf reads a capture to its end and returns its comments.
func commentsOf(t *testing.T, r *pcapgo.NgReader) (comments []string) {
	t.Helper()
	for {
		_, _, o, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return comments
		}
		if err != nil {
			t.Fatal(err)
		}
		comments = append(comments, o.Comments...)
	}
}

// TestCaptureExplainsPlainIP checks that clear captures name the function of a plain IP packet.
func TestCaptureExplainsPlainIP(t *testing.T) {
	for nic, want := range []string{
		"plain IP of h1.pf0.vf1, port vp1; tenant 7; to NIC 2",
		"plain IP of h2.pf0.vf1, port vp1; tenant 7; from NIC 1",
	} {
		var file bytes.Buffer
		to, err := capture.New(&file, config.CaptureBoth)
		if err != nil {
			t.Fatal(err)
		}
		v := newPortWorld(t, 3)
		v.captureTo(nic, to, config.CaptureClear)
		v.say(0, 0, host1, host2, 100)
		if len(v.received(1)) != 1 {
			t.Fatal("no traffic")
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := commentsOf(t, r); !slices.Contains(got, want) {
			t.Errorf("no comment %q in %q", want, got)
		}
	}
}

// TestAClearCaptureNamesTheWorkRequest checks that the comments of a clear capture name the function, queue pair and
// work request of a packet, on the way out and for the response.
func TestAClearCaptureNamesTheWorkRequest(t *testing.T) {
	var file bytes.Buffer
	to, err := capture.New(&file, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	v := newVirtual(t, 2, wire100us)
	a, b := pair(v)
	v.captureTo(0, to, config.CaptureClear)
	a.send(abi.OpWrite, 0, 3000, b, 0)
	a.done()
	a.send(abi.OpRead, 0, 100, b, 0)
	a.done()
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	comments := commentsOf(t, r)
	for _, want := range []string{
		`^h1\.pf0\.vf1 QP \d+, WRITE (Only|First), SN 1, WQE 0 \(wr_id 0x\w+\), bytes 0 to \d+$`,
		`^h1\.pf0\.vf1 QP \d+, READ Request, SN \d+, WQE 1 \(wr_id 0x\w+\), bytes 0 to 100$`,
		`^h1\.pf0\.vf1 QP \d+, READ Response Only, SN \d+, WQE 1 \(wr_id 0x\w+\), bytes 0 to 100$`,
		`^h1\.pf0\.vf1 QP \d+$`, // acknowledgements
	} {
		if !slices.ContainsFunc(comments, regexp.MustCompile(want).MatchString) {
			t.Errorf("no comment %s in\n%q", want, comments)
		}
	}
}

// TestTrafficIsCapturedIfAnyCaptureWantsIt checks that traffic is copied if any of several captures
// wants it.
func TestTrafficIsCapturedIfAnyCaptureWantsIt(t *testing.T) {
	ports := map[capture.Port]int{{Name: "vp0"}: 2}
	for _, c := range []struct {
		sinks                 []capture.Sink
		sealed, clear, ported bool
	}{
		{nil, false, false, false},
		{[]capture.Sink{{}}, false, false, false},
		{[]capture.Sink{{Sealed: true}}, true, false, false},
		{[]capture.Sink{{Clear: true}}, false, true, false},
		{[]capture.Sink{{AnyPort: true}}, false, false, true},
		{[]capture.Sink{{Ports: ports}}, false, false, true},
		{[]capture.Sink{{Ports: ports}, {Sealed: true}}, true, false, true},
		{[]capture.Sink{{Sealed: true}, {Clear: true}, {}}, true, true, false},
		{[]capture.Sink{{AnyPort: true, Clear: true}, {Sealed: true}}, true, true, true},
	} {
		var p captures
		for _, before := range [][]capture.Sink{nil, {{Sealed: true, Clear: true, AnyPort: true}}} {
			p.set(before)
			p.set(c.sinks)
			if p.wantSealed != c.sealed || p.wantClear != c.clear || p.wantPorts != c.ported || len(p.sinks) != len(c.sinks) {
				t.Errorf("%+v: sealed %t, clear %t, ports %t", c.sinks, p.wantSealed, p.wantClear, p.wantPorts)
			}
		}
	}
}

// captured is a packet of a capture.
type captured struct {
	data []byte
	at   int64 // wall clock, ns
}

// recordsOf reads a capture to its end.
func recordsOf(t *testing.T, file io.Reader) (list []captured) {
	t.Helper()
	r, err := pcapgo.NewNgReader(file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	for err == nil {
		var data []byte
		var ci gopacket.CaptureInfo
		if data, ci, err = r.ReadPacketData(); err == nil {
			list = append(list, captured{data, ci.Timestamp.UnixNano()})
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return list
}

// TestCaptureHasTheWallClock checks that packets are captured with the time of the wall clock, not
// the shard's.
func TestCaptureHasTheWallClock(t *testing.T) {
	var file bytes.Buffer
	to, err := capture.New(&file, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	p := captures{wallOffset: wallOffset}
	p.set([]capture.Sink{{To: to, Sealed: true}})
	p.sealed(captureOut, 1, []byte("one"))
	p.received(20, []byte("two"), 0)
	p.received(300, []byte("three"), 2)
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	want := []captured{{[]byte("one"), wallOffset + 1}, {[]byte("two"), wallOffset + 20}, {[]byte("three"), wallOffset + 300}}
	if got := recordsOf(t, &file); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestFramesOfAPortAreCapturedByName checks that a frame of a port is in the captures that name the
// port, and in those of any port, which add the port then.
func TestFramesOfAPortAreCapturedByName(t *testing.T) {
	shown := capture.Port{Name: "vp0"}
	for _, c := range []struct {
		sink func(*capture.Capture) capture.Sink
		want int
	}{
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{{Name: "vp1"}: 2}}
		}, 0},
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{shown: 2}}
		}, 2},
		{func(to *capture.Capture) capture.Sink {
			return capture.Sink{To: to, Ports: map[capture.Port]int{}, AnyPort: true}
		}, 2},
	} {
		var file bytes.Buffer
		to, err := capture.New(&file, config.CaptureBoth, shown)
		if err != nil {
			t.Fatal(err)
		}
		p := captures{wallOffset: wallOffset}
		p.set([]capture.Sink{c.sink(to)})
		frame := []byte("a frame of a port, as it is")
		for range 2 {
			p.port(captureIn, 12, &Port{shown: shown}, &gateway.Offload{}, frame)
		}
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range recordsOf(t, &file) {
			if n++; !bytes.Equal(r.data, frame) || r.at != wallOffset+12 {
				t.Errorf("%q at %d", r.data, r.at)
			}
		}
		if n != c.want {
			t.Errorf("%d frames are captured, want %d", n, c.want)
		}
	}
}

// TestFramesOfPortsAreCapturedBothWays checks that frames that guests send and get are captured if
// a capture wants ports, both ways, but not frames of endpoints without a port.
func TestFramesOfPortsAreCapturedBothWays(t *testing.T) {
	for _, x := range []struct {
		sink capture.Sink
		want []string
	}{
		{capture.Sink{AnyPort: true, Ports: map[capture.Port]int{}}, []string{"sent", "given"}},
		{capture.Sink{Sealed: true}, nil},
	} {
		var file bytes.Buffer
		to, err := capture.New(&file, config.CaptureBoth)
		if err != nil {
			t.Fatal(err)
		}
		x.sink.To = to
		var p captures
		p.set([]capture.Sink{x.sink})
		known, other := &gateway.Endpoint{Owner: &Port{}}, &gateway.Endpoint{}
		p.fromPorts(1, []gateway.PortInput{{From: known, Frame: []byte("sent")}, {From: other, Frame: []byte("another's")}})
		p.toPort(2, &gateway.PortFrame{To: known, Parts: [][]byte{[]byte("given")}})
		p.toPort(3, &gateway.PortFrame{To: other, Parts: [][]byte{[]byte("to another")}})
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range recordsOf(t, &file) {
			got = append(got, string(c.data))
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%q was captured, want %q", got, x.want)
		}
	}
}

// TestCapturesAndTracesAreBounded checks the limits on captures and traced functions at one time,
// and that one that ends makes room.
func TestCapturesAndTracesAreBounded(t *testing.T) {
	v := newVirtualWith(t, 5, wire100us, manyVFs)
	s := v.shards[0]
	traces := s.View().Traces
	var captures []*capture.Capture
	begin := func() error {
		c, err := capture.New(io.Discard, config.CaptureBoth)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		captures = append(captures, c)
		return s.View().Captures.Start(&capture.Sink{To: c, Clear: true}, 0)
	}
	for i := range maxCaptures {
		if err := begin(); err != nil {
			t.Fatalf("capture %d: %v", i, err)
		}
	}
	if err := begin(); err == nil || !strings.Contains(err.Error(), "run already") {
		t.Errorf("one more: %v", err)
	}
	s.View().Captures.End(captures[1])
	if err := begin(); err != nil || len(s.capture.sinks) != maxCaptures {
		t.Errorf("in its place: %v, %d run", err, len(s.capture.sinks))
	}

	vf := func(n int) pfvf.ID {
		id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), 0, uint32(n))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for i := range maxTraces {
		if _, err := traces.Start(vf(i+1), 0); err != nil {
			t.Fatalf("trace %d: %v", i, err)
		}
	}
	if _, err := traces.Start(vf(maxTraces+1), 0); err == nil || !strings.Contains(err.Error(), "are traced already") {
		t.Errorf("one more: %v", err)
	}
	traces.End(vf(2))
	if _, err := traces.Start(vf(maxTraces+1), 0); err != nil {
		t.Errorf("in its place: %v", err)
	}
}
