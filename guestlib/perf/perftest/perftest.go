package perftest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Port is where the programs listen.
const Port = 18515

const (
	version    = "6.06"
	versionLen = 16
	// mark stands behind our version's zero, where the programs have zeros.
	mark = "vnic"
	// oldest is the version since which all numbers of the exchange have their length.
	oldest = 5.33

	page = 4096 // small messages go to successive lines of so many bytes
	line = 64
	// maxPage is the largest that a processor has.
	maxPage = 1 << 20
)

// helloTime bounds the exchange of versions: ib_write_bw sleeps for a second first.
const helloTime = 10 * time.Second

// lingers is how long the end of a connection waits for the other end to leave.
const lingers = 5 * time.Second

// ErrStranger says that the other end is not a program of perftest.
var ErrStranger = errors.New("the other end is not a program of perftest")

// numbered is how a version begins.
var numbered = regexp.MustCompile(`^[0-9]+\.[0-9]+`)

// hello is the first message.
func hello() []byte {
	b := make([]byte, versionLen)
	copy(b[copy(b, version)+1:], mark)
	return b
}

// parseHello returns the version in the other end's first message, and whether it is one of ours.
func parseHello(b []byte) (v string, ours bool, err error) {
	text, rest, ended := strings.Cut(string(b), "\x00")
	number := numbered.FindString(text)
	if len(b) != versionLen || !ended || number == "" {
		return "", false, ErrStranger
	}
	if f, err := strconv.ParseFloat(number, 64); err != nil || f < oldest {
		return "", false, fmt.Errorf("the program of perftest has version %s; %v is the oldest that this one talks to", number, oldest)
	}
	return text, strings.HasPrefix(rest, mark), nil
}

// Keys are what the ends tell each other of a queue pair.
type Keys struct {
	QPN, PSN, RKey uint32
	Addr           uint64 // of the memory that the other end may use
	Reads          uint8  // READs and atomics that may be in flight to it
	GID            [16]byte
}

// KeysLen is the length of a message with keys.
const KeysLen = 108

// String is the text of the message. An LID is InfiniBand's; the last field belongs to shared
// receive queues of XRC.
func (k *Keys) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, k.Reads, k.QPN, k.PSN, k.RKey, k.Addr)
	for _, g := range k.GID {
		fmt.Fprintf(&b, "%02x:", g)
	}
	fmt.Fprintf(&b, "%08x:", 0)
	return b.String()
}

// Message is the text with zeros to its length.
func (k *Keys) Message() []byte {
	b := make([]byte, KeysLen)
	copy(b, k.String())
	return b
}

// keyBits are the widths of the fields; those of the GID follow, and one more.
var keyBits = [...]int{16, 16, 24, 24, 32, 64}

// ParseKeys reads a message, or its text alone.
func ParseKeys(b []byte) (*Keys, error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	fields := strings.Split(text, ":")
	if len(b) > KeysLen || len(fields) != len(keyBits)+16+2 || fields[len(fields)-1] != "" {
		return nil, fmt.Errorf("%q names no queue pair as perftest does", text)
	}
	var v [len(keyBits) + 16 + 1]uint64
	for i := range v {
		bits := 8
		switch {
		case i < len(keyBits):
			bits = keyBits[i]
		case i == len(v)-1:
			bits = 32
		}
		var err error
		if v[i], err = strconv.ParseUint(fields[i], 16, bits); err != nil {
			return nil, fmt.Errorf("%q names no queue pair as perftest does: %w", text, err)
		}
	}
	k := &Keys{Reads: uint8(min(v[1], math.MaxUint8)), QPN: uint32(v[2]), PSN: uint32(v[3]), RKey: uint32(v[4]), Addr: v[5]}
	for i := range k.GID {
		k.GID[i] = byte(v[len(keyBits)+i])
	}
	return k, nil
}

// Report is what a bandwidth test of WRITE, READ or atomics measured.
type Report struct {
	Bytes, Iterations   uint64
	Peak, Average, Rate float64 // 2^20 bytes per second, and 10^6 messages per second
}

const reportLen = 5 * 8

func (r *Report) marshal() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, reportLen), r.Bytes)
	b = binary.BigEndian.AppendUint64(b, r.Iterations)
	for _, f := range []float64{r.Peak, r.Average, r.Rate} {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// maxReported bounds what a report may count: more than that are no numbers but keys.
const maxReported = 1 << 48

func parseReport(b []byte) (*Report, error) {
	if len(b) != reportLen {
		return nil, fmt.Errorf("a report of %d bytes, want %d", len(b), reportLen)
	}
	at := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	r := &Report{at(0), at(1), math.Float64frombits(at(2)), math.Float64frombits(at(3)), math.Float64frombits(at(4))}
	if r.Bytes > maxReported || r.Iterations > maxReported {
		return nil, errors.New("the other end sent something else than a report: it runs another test, or both directions at once (-b)")
	}
	return r, nil
}

// Conn is a connection to a program of perftest.
type Conn struct {
	Version string // of the other end

	c      net.Conn
	r      *bufio.Reader
	server bool
}

// Client begins with a server at c. A failed one closes c.
func Client(ctx context.Context, c net.Conn) (*Conn, error) { return begin(ctx, c, false) }

// Server begins with a client at c. A failed one closes c. A client of this package is none: it only
// looks whether perftest is here.
func Server(ctx context.Context, c net.Conn) (*Conn, error) { return begin(ctx, c, true) }

func begin(ctx context.Context, c net.Conn, server bool) (_ *Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	p := &Conn{c: c, r: bufio.NewReaderSize(c, 256), server: server}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	if !server {
		if _, err := c.Write(hello()); err != nil {
			return nil, err
		}
	}
	b := make([]byte, versionLen)
	if _, err := io.ReadFull(p.r, b); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	ours := false
	if p.Version, ours, err = parseHello(b); err != nil {
		return nil, err
	}
	if ours {
		return nil, ErrStranger
	}
	if server {
		_, err = c.Write(hello())
	}
	return p, err
}

// RemoteAddr is the TCP address of the other end.
func (p *Conn) RemoteAddr() net.Addr { return p.c.RemoteAddr() }

// exchange sends a message and returns the other end's of the same length. The client's goes first.
func (p *Conn) exchange(mine []byte) ([]byte, error) {
	theirs := make([]byte, len(mine))
	write := func() error {
		_, err := p.c.Write(mine)
		return err
	}
	read := func() error {
		_, err := io.ReadFull(p.r, theirs)
		return err
	}
	first, second := write, read
	if p.server {
		first, second = read, write
	}
	err := first()
	if err == nil {
		err = second()
	}
	if err != nil {
		err = fmt.Errorf("the program of perftest at %v has left, see what it says: %w", p.c.RemoteAddr(), err)
	}
	return theirs, err
}

// Settle exchanges what holds for all queue pairs: the path MTU as verbs number it (1: 256 bytes, 5:
// 4096), of which the smaller one counts, and the size of the buffer in which small messages wrap
// around.
func (p *Conn) Settle(mtu uint8) (_ uint8, around int, err error) {
	around = page
	for i, v := range []uint32{page, line} {
		b, err := p.exchange(binary.BigEndian.AppendUint32(nil, v))
		if err != nil {
			return 0, 0, err
		}
		if v = binary.BigEndian.Uint32(b); v > maxPage {
			return 0, 0, fmt.Errorf("the program of perftest has pages or lines of %d bytes; at most %d are supported", v, maxPage)
		}
		if i == 0 {
			around = max(around, int(v))
		}
	}
	b, err := p.exchange([]byte{'0' + mtu, 0})
	if err != nil {
		return 0, 0, err
	}
	if theirs := b[0] - '0'; theirs >= 1 && theirs < mtu {
		mtu = theirs
	}
	return mtu, around, nil
}

// Keys exchanges keys. Beside telling them, it is how both ends wait for each other.
func (p *Conn) Keys(own *Keys) (*Keys, error) {
	b, err := p.exchange(own.Message())
	if err != nil {
		return nil, err
	}
	return ParseKeys(b)
}

// Report exchanges reports.
func (p *Conn) Report(own *Report) (*Report, error) {
	mine := own.marshal()
	var theirs []byte
	for ; len(mine) > 0; mine = mine[8:] {
		b, err := p.exchange(mine[:8])
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, b...)
	}
	return parseReport(theirs)
}

// Done ends the test of most programs.
func (p *Conn) Done(own *Keys) error {
	if _, err := p.Keys(own); err != nil {
		return err
	}
	_, _ = p.c.Write([]byte("done\x00")) // the other end may not wait for it
	return nil
}

// Hear waits until the other end says something, or ends, which is the error. It takes nothing.
// Interrupt ends it.
func (p *Conn) Hear() error {
	_, err := p.r.Peek(1)
	return err
}

// Interrupt ends a Hear, and Resume lets the connection be used again.
func (p *Conn) Interrupt() { _ = p.c.SetReadDeadline(time.Unix(1, 0)) }

// Resume follows an Interrupt.
func (p *Conn) Resume() { _ = p.c.SetReadDeadline(time.Time{}) }

// Leave waits a while until the other end has left, whose last requests may not be acknowledged yet.
func (p *Conn) Leave() {
	if c, ok := p.c.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	_ = p.c.SetReadDeadline(time.Now().Add(lingers))
	_, _ = io.Copy(io.Discard, p.r)
	_ = p.c.Close()
}

// Close hangs up.
func (p *Conn) Close() error { return p.c.Close() }
