package linuxtest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// capture captures the packets at the port of the stock guest until end is called, which returns
// the file.
func (l *linuxLab) capture(t *testing.T) (end func() string) {
	t.Helper()
	_, err := exec.LookPath("tshark")
	vnictest.Require(t, err == nil, "tshark is not installed")
	file := filepath.Join(l.dir, "guest.pcapng")
	p, err := labkit.StartCommand("capture", exec.Command(vnictest.Program(t), "capture", "-s", l.control(l.hosts), "-w", file, "--port", "vp2"))
	if err != nil {
		t.Fatal(err)
	}
	vnictest.Eventually(t, "capture runs", func() error { // the file begins with its interfaces
		if st, err := os.Stat(file); err != nil || st.Size() < 100 {
			return fmt.Errorf("%v %v", st, err)
		}
		return nil
	})
	return func() string {
		p.Stop(time.Minute)
		return file
	}
}

// checkCapture lets tshark read the packets between a function and Soft-RoCE: it finds no fault,
// and all opcodes from both sides. tshark does not verify the ICRC; that is computed here, by other
// code than the device's.
func (l *linuxLab) checkCapture(t *testing.T, file string, ours, theirs []int) {
	t.Helper()
	const noUDPChecksum = "udp.ignore_ipv6_zero_checksum:TRUE" // RoCEv2 allows it
	out, err := exec.Command("tshark", "-o", noUDPChecksum, "-r", file, "-Y", "udp.dstport == 4791", "-T", "fields", "-e", "frame.number", "-e", "eth.src", "-e", "infiniband.bth.opcode",
		"-e", "infiniband.invariant.crc", "-e", "_ws.malformed", "-e", "_ws.expert.severity").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	frames := frames(t, file)
	sent := [2]map[int]int{{}, {}} // packets by opcode: ours, the guest's
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		number, _ := strconv.Atoi(f[0])
		opcode, err := strconv.Atoi(f[2])
		crc, err2 := strconv.ParseUint(f[3], 0, 32)
		if err != nil || err2 != nil || f[4] != "" || strings.Trim(f[5], comments) != "" || number > len(frames) {
			t.Fatalf("tshark of frame %d of %d: %q", number, len(frames), f[1:])
		}
		if want, err := invariantCRC(frames[number-1]); err != nil || want != uint32(crc) {
			t.Fatalf("frame %d from %s, opcode %d: ICRC %08x, want %08x, %v: %x", number, f[1], opcode, crc, want, err, frames[number-1])
		}
		if f[1] == l.mac {
			sent[1][opcode]++
		} else {
			sent[0][opcode]++
		}
	}
	t.Logf("packets of the function %v, of Soft-RoCE %v", sent[0], sent[1])
	for side, want := range [2][]int{ours, theirs} {
		for _, opcode := range want {
			if sent[side][opcode] == 0 {
				t.Errorf("%s sent no packet with opcode %d", [2]string{"the function", "Soft-RoCE"}[side], opcode)
			}
		}
	}
}

// comments has the characters that tshark shows for a frame with comments, which name the function:
// the number PI_COMMENT, with a comma between two.
const comments = "1048576,"

// frames returns the frames of a capture.
func frames(t *testing.T, file string) (all [][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, _, err := r.ReadPacketData()
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, frame)
	}
}

// invariantCRC returns the ICRC that a RoCEv2 frame must have (Annex A17.3.3) in the form in which
// tshark shows it: the four bytes in order. It is computed bit by bit.
func invariantCRC(frame []byte) (uint32, error) {
	const ethernet, udp, bth, icrc = 14, 8, 12, 4
	if len(frame) < ethernet+20 {
		return 0, errors.New("short frame")
	}
	covered := bytes.Clone(frame[ethernet:])
	variant, ip, total := []int(nil), 0, 0
	switch covered[0] >> 4 {
	case 4:
		ip, total = 20, int(binary.BigEndian.Uint16(covered[2:]))
		variant = []int{1, 8, 10, 11} // TOS, TTL, checksum
	case 6:
		ip, total = 40, 40+int(binary.BigEndian.Uint16(covered[4:]))
		covered[0] |= 0x0f
		variant = []int{1, 2, 3, 7} // traffic class, flow label, hop limit
	}
	if ip == 0 || total > len(covered) || total < ip+udp+bth+icrc {
		return 0, fmt.Errorf("IP packet of %d bytes", total)
	}
	for _, at := range append(variant, ip+6, ip+7, ip+udp+4) { // UDP checksum; FECN, BECN and reserved bits
		covered[at] = 0xff
	}
	crc := ^uint32(0)
	for _, b := range append(bytes.Repeat([]byte{0xff}, 8), covered[:total-icrc]...) {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ crc&1*0xedb88320
		}
	}
	return binary.BigEndian.Uint32(binary.LittleEndian.AppendUint32(nil, ^crc)), nil
}

// TestInvariantCRCIsThatOfLinux checks the code above with frames of Linux, and that a change of any byte is
// noticed.
func TestInvariantCRCIsThatOfLinux(t *testing.T) {
	all := frames(t, "../../../rdma/roce/wire/testdata/rxe.pcapng")
	checked := 0
	for i, frame := range all {
		if len(frame) < 60 || !bytes.Contains(frame[34:58], []byte{4791 >> 8, 4791 & 0xff}) {
			continue
		}
		checked++
		end := len(frame) - 4
		want := binary.BigEndian.Uint32(frame[end:])
		if got, err := invariantCRC(frame); err != nil || got != want {
			t.Fatalf("frame %d: %08x, %v, want %08x", i, got, err, want)
		}
		frame[end-1] ^= 1
		if got, err := invariantCRC(frame); err != nil || got == want {
			t.Fatalf("frame %d with a wrong byte: %08x, %v", i, got, err)
		}
	}
	if checked == 0 {
		t.Error("no frames")
	}
}
