package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// Counts counts the frames that a Sniffer saw, by class.
type Counts struct {
	PSP, ARP, ND, ICMPv6, Other uint64
	Dropped                     uint64   // by the kernel, because the Sniffer was too slow
	Others                      []string // descriptions of the first few frames of class Other
}

// Total is the number of frames seen.
func (c *Counts) Total() uint64 { return c.PSP + c.ARP + c.ND + c.ICMPv6 + c.Other }

const (
	maxOthers  = 8
	sniffBytes = 1 << 18 // no frame is longer, superframes included
	sniffQueue = 32 << 20
)

// Sniffer captures the frames of one kernel link, including forwarded ones, to a pcapng file.
type Sniffer struct {
	name   string
	sock   *os.File
	out    io.WriteCloser
	w      *pcapgo.NgWriter
	done   chan struct{}
	err    error // of run; read after done is closed
	mu     sync.Mutex
	counts Counts
}

// Sniff opens a raw socket on a link in the network namespace of the calling thread, and writes to
// a new file. If that is not the process's namespace, the caller must lock its goroutine to the
// thread; the Sniffer itself runs on any thread. It needs CAP_NET_RAW. On a bridge it sees the
// frames that the bridge forwards. A superframe that the kernel has not segmented is one frame.
func Sniff(ifname, path string) (*Sniffer, error) {
	s, err := newSniffer(ifname, path)
	if err != nil {
		return nil, err
	}
	go s.run()
	return s, nil
}

// newSniffer returns a Sniffer that does not read yet.
func newSniffer(ifname, path string) (*Sniffer, error) {
	sock, err := openPacketSocket(ifname)
	if err != nil {
		return nil, fmt.Errorf("capture: link %s: %w", ifname, err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("%w and is not overwritten: remove it or choose another name", err)
	}
	if err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("capture: %w", err)
	}
	w, err := pcapgo.NewNgWriterInterface(out, pcapgo.NgInterface{
		Name: ifname, Description: "seen by the kernel", LinkType: layers.LinkTypeEthernet, SnapLength: sniffBytes,
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "vnic"}})
	if err != nil {
		_ = errors.Join(sock.Close(), out.Close())
		return nil, fmt.Errorf("capture: %s: %w", path, err)
	}
	return &Sniffer{name: ifname, sock: sock, out: out, w: w, done: make(chan struct{})}, nil
}

func openPacketSocket(ifname string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("packet socket: %w (it needs root or CAP_NET_RAW)", err)
		}
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "packet:"+ifname)
	index, err := linkIndex(fd, ifname)
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			// Without this a bridge shows only frames addressed to itself.
			unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
				&unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}),
			receiveBuffer(fd),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index}),
		)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// linkIndex asks through the socket, and so in the socket's namespace.
func linkIndex(fd int, name string) (int, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("name: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return 0, fmt.Errorf("SIOCGIFINDEX: %w", err)
	}
	return int(req.Uint32()), nil
}

func receiveBuffer(fd int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, sniffQueue) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sniffQueue)
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Counts returns the present counts.
func (s *Sniffer) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Others = slices.Clone(c.Others)
	return c
}

// Close reads the frames that wait in the socket, closes the file and returns the counts.
func (s *Sniffer) Close() (Counts, error) {
	_ = s.sock.SetReadDeadline(time.Unix(1, 0))
	<-s.done
	return s.Counts(), s.err
}

func (s *Sniffer) run() {
	defer close(s.done)
	frame, control := make([]byte, sniffBytes), make([]byte, 512)
	conn, err := s.sock.SyscallConn()
	if err == nil {
		err = s.read(conn.Read, frame, control)
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) { // the deadline was set by Close
		err = s.drain(conn.Control, frame, control)
	}
	s.kernelDrops(conn.Control)
	err = errors.Join(err, s.w.Flush(), s.out.Close(), s.sock.Close())
	if err != nil {
		s.err = fmt.Errorf("capture: link %s: %w", s.name, err)
	}
}

// read reads frames until the deadline that Close sets.
func (s *Sniffer) read(wait func(func(uintptr) bool) error, frame, control []byte) error {
	var failed error
	err := wait(func(fd uintptr) bool {
		failed = s.batch(int(fd), frame, control)
		return failed != nil
	})
	return errors.Join(failed, err)
}

// drain reads the frames that wait.
func (s *Sniffer) drain(with func(func(uintptr)) error, frame, control []byte) error {
	var failed error
	err := with(func(fd uintptr) { failed = s.batch(int(fd), frame, control) })
	return errors.Join(failed, err)
}

// batch reads frames until none waits.
func (s *Sniffer) batch(fd int, frame, control []byte) error {
	for {
		n, nc, _, _, err := unix.Recvmsg(fd, frame, control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return s.w.Flush()
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENETDOWN): // the link went down and may come back
			return nil
		case err != nil:
			return err
		}
		if err := s.take(frame[:n], arrival(control[:nc])); err != nil {
			return err
		}
	}
}

func (s *Sniffer) take(frame []byte, at time.Time) error {
	class := Classify(frame)
	s.mu.Lock()
	switch class {
	case PSP:
		s.counts.PSP++
	case ARP:
		s.counts.ARP++
	case ND:
		s.counts.ND++
	case ICMPv6:
		s.counts.ICMPv6++
	default:
		s.counts.Other++
		if len(s.counts.Others) < maxOthers {
			s.counts.Others = append(s.counts.Others, describe(frame))
		}
	}
	s.mu.Unlock()
	return s.w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}, frame)
}

// arrival returns the kernel's timestamp of a frame.
func arrival(control []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range msgs {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
				return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
	}
	return time.Now()
}

func (s *Sniffer) kernelDrops(with func(func(uintptr)) error) {
	_ = with(func(fd uintptr) {
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.mu.Lock()
			s.counts.Dropped = uint64(st.Drops)
			s.mu.Unlock()
		}
	})
}
