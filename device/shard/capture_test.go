package shard

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
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
	for side, want := range []string{
		"plain IP of h1.pf0.vf1, port vp1; tenant 7; to host 2",
		"plain IP of h2.pf0.vf1, port vp1; tenant 7; from host 1",
	} {
		var file bytes.Buffer
		to, err := capture.New(&file)
		if err != nil {
			t.Fatal(err)
		}
		v := newPortWorld(t, 3)
		v.captureTo(side, to, config.CaptureClear)
		v.say(0, 0, host1, host2, 100)
		if len(v.heard(1)) != 1 {
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

// TestCaptureExplains checks that the comments of a clear capture name the function, queue pair and
// work request of a packet, on the way out and for the response.
func TestCaptureExplains(t *testing.T) {
	var file bytes.Buffer
	to, err := capture.New(&file)
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
