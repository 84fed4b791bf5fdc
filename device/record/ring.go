package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// Ring keeps the last of what the shards of a NIC recorded, in memory that can outlive the process:
// however a worker ends, its supervisor can save what was recorded. After some Steps a shard copies
// what was in them to its part of the memory; the oldest Steps make room. As long as none had to, what
// is saved is the whole recording.
//
//	ringHead │ header in JSON │ part of shard 0 │ part of shard 1 │ …
//	part: tail, head, base, whole (8 bytes each) │ the tape's buffer │ bytes, in which entries of 4 bytes of length
//	      and their content form a ring; tail and head count all bytes that ever were in it
//	buffer: whole bytes of Steps that came to their end │ what the tape writes now, up to zeros
//
// A process may end at any instruction. So head moves when an entry is there, and tail before its bytes are
// written over. What is not in an entry yet, to the Step in which the process ended, perhaps in a loop without
// an end, is in the tape's buffer. It follows the entry that ends at base: if head is not base, the buffer is
// in an entry already, and is being cleared.
type Ring struct {
	file   *os.File
	mem    []byte
	parts  []ringPart
	tapes  []*tape.Tape
	header Header
}

// ringPart is the part of one shard.
type ringPart struct {
	mu         sync.Mutex // held while an entry is written, or some are copied
	mem        []byte
	open       []byte // the tape's buffer, in mem
	batch      int    // bytes in it after which they become an entry
	tail, head uint64
	whole      atomic.Uint64 // as in mem, for this process
}

const (
	ringMagic  = "vnicrng\x05" // as the version of the format
	ringHead   = 24            // the magic, the length of the header, and the size of a part (8 bytes each)
	partHead   = 32
	entryHead  = 4
	ringBuffer = 1 << 20 // room for what is in a Step; of one with more, the beginning is there

	// The least length of an entry. If it were shorter, making entries would be most of what a Step costs;
	// if it were longer, the bytes would leave the processor's nearest cache before they are copied.
	ringBatch = 8 << 10
)

// NewRing begins a recording in memory, of c.Limit bytes.
func NewRing(c Config, h Header) (*Ring, error) {
	h.Config, h.Payload = c.Text, c.Keep.String()
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	size := partHead + ringBuffer + c.Limit/int64(h.Shards)&^7
	from := int64(ringHead+len(text)+7) &^ 7
	fd, err := unix.MemfdCreate("vnic-recorder", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	r := &Ring{file: os.NewFile(uintptr(fd), "recorder"), header: h}
	if err = r.file.Truncate(from + size*int64(h.Shards)); err == nil {
		// If the shard's thread were the first to touch a page, that would cost it more than what it writes
		// there.
		r.mem, err = unix.Mmap(fd, 0, int(from+size*int64(h.Shards)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nic.recorder.size: %w", err), r.file.Close())
	}
	b := append(r.mem[:0], ringMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	copy(r.mem[len(b):], text)
	r.parts = make([]ringPart, h.Shards)
	for i := range r.parts {
		p := &r.parts[i]
		p.mem = r.mem[from+size*int64(i):][:size:size]
		p.open = p.mem[partHead:][:ringBuffer:ringBuffer]
		p.batch = min(ringBatch, len(p.data())/16)
		r.tapes = append(r.tapes, tape.Record(1, c.Keep, p.take))
	}
	return r, nil
}

// Tape returns the tape of a shard, which belongs to its thread.
func (r *Ring) Tape(shard int) *tape.Tape { return r.tapes[shard] }

// File returns the memory, for a process that outlives this one.
func (r *Ring) File() *os.File { return r.file }

// Close frees the memory. The threads of the shards have ended.
func (r *Ring) Close() error { return errors.Join(unix.Munmap(r.mem), r.file.Close()) }

// take is called after each Step. Once there is enough in a tape's buffer, it copies that to the memory and returns the
// buffer empty. It never waits: while somebody copies entries, the tape keeps what it has until a later Step.
func (p *ringPart) take(b []byte) []byte {
	if b == nil {
		return p.open[:0]
	}
	if len(b) < p.batch || !p.mu.TryLock() {
		p.ends(len(b))
		return b
	}
	defer p.mu.Unlock()
	size, need := uint64(len(p.data())), uint64(entryHead+len(b))
	for p.tail < p.head && p.head-p.tail+need > size {
		var n [entryHead]byte
		p.read(p.tail, n[:])
		p.tail += entryHead + uint64(binary.LittleEndian.Uint32(n[:]))
	}
	binary.LittleEndian.PutUint64(p.mem, p.tail)
	if need <= size { // if not, what follows says that it is missing
		var n [entryHead]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(b)))
		p.write(p.head, n[:])
		p.write(p.head+entryHead, b)
		p.head += need
		binary.LittleEndian.PutUint64(p.mem[8:], p.head)
	}
	p.ends(0)
	clear(p.open[:min(len(b), ringBuffer)])
	binary.LittleEndian.PutUint64(p.mem[16:], p.head)
	return p.open[:0]
}

// ends says where in the buffer the last Step ends that came to its end.
func (p *ringPart) ends(at int) {
	binary.LittleEndian.PutUint64(p.mem[24:], uint64(at))
	p.whole.Store(uint64(at))
}

// data returns the ring of entries.
func (p *ringPart) data() []byte { return p.mem[partHead+ringBuffer:] }

func (p *ringPart) write(at uint64, b []byte) {
	data := p.data()
	n := copy(data[at%uint64(len(data)):], b)
	copy(data, b[n:])
}

func (p *ringPart) read(at uint64, b []byte) {
	data := p.data()
	n := copy(b, data[at%uint64(len(data)):])
	copy(b[n:], data)
}

// WriteTo writes the recording as it is now, as a file has it.
func (r *Ring) WriteTo(w io.Writer) (size int64, err error) {
	part := int64(len(r.parts[0].mem))
	return writeRing(w, &r.header, r.file, int64(len(r.mem)), part, r.parts)
}

// Save saves the recording as it is now in a new file.
func (r *Ring) Save(path string) (size int64, err error) {
	return save(path, r.WriteTo)
}

// Rescue saves the recording of a process that has ended, whose recorder had so many bytes. Nothing in
// its memory is trusted.
func Rescue(memory *os.File, limit int64, path string) (size int64, err error) {
	st, err := memory.Stat()
	if err != nil {
		return 0, err
	}
	if !st.Mode().IsRegular() || st.Size() > ringHead+maxHeader+8+limit+maxShards*(partHead+ringBuffer) {
		return 0, errNoRing
	}
	h, part, err := ringHeader(memory, st.Size())
	if err != nil {
		return 0, err
	}
	return save(path, func(w io.Writer) (int64, error) {
		return writeRing(w, h, memory, st.Size(), part, nil)
	})
}

var errNoRing = errors.New("the memory of the recorder is damaged")

// ringHeader reads the header of a recording in memory of so many bytes, and the size of a part.
func ringHeader(memory io.ReaderAt, all int64) (h *Header, part int64, err error) {
	var head [ringHead]byte
	if _, err := memory.ReadAt(head[:], 0); err != nil || string(head[:8]) != ringMagic {
		return nil, 0, errNoRing
	}
	text := make([]byte, min(binary.LittleEndian.Uint64(head[8:]), maxHeader))
	if _, err := memory.ReadAt(text, ringHead); err != nil || json.Unmarshal(text, &h) != nil || h == nil {
		return nil, 0, errNoRing
	}
	part = int64(binary.LittleEndian.Uint64(head[16:]))
	if h.Shards < 1 || h.Shards > maxShards || part <= partHead+ringBuffer || part > all/int64(h.Shards) {
		return nil, 0, errNoRing
	}
	return h, part, nil
}

// writeRing writes a file of a recording in memory of so many bytes in all. live are the parts of a process that goes on;
// of one that has ended, what it was doing is written, too.
func writeRing(w io.Writer, h *Header, memory io.ReaderAt, all, part int64, live []ringPart) (size int64, err error) {
	from := all - part*int64(h.Shards)
	if size, err = h.write(w); err != nil {
		return 0, err
	}
	for shard := range h.Shards {
		e := entries{memory: memory, at: from + part*int64(shard), size: uint64(part - partHead - ringBuffer)}
		if live != nil {
			e.live = &live[shard]
		}
		for {
			b, err := e.next()
			if err != nil {
				return size, err
			}
			if len(b) == 0 {
				break
			}
			n, err := (&chunk{shard, b}).write(w)
			if size += n; err != nil {
				return size, err
			}
		}
	}
	return size, nil
}

// entries reads what is in a part: its entries, from the oldest to the one that was the newest when reading
// began, and the tape's buffer.
type entries struct {
	memory io.ReaderAt
	at     int64     // of the part
	size   uint64    // of its bytes
	live   *ringPart // nil: its process has ended
	begun  bool
	pos    uint64 // of the next entry
	end    uint64 // where the last ends
	b      []byte
	open   [][]byte // what was in the buffer
}

// next returns the next chunk of the recording; none: there are no more.
func (e *entries) next() ([]byte, error) {
	if e.live != nil {
		e.live.mu.Lock()
		defer e.live.mu.Unlock()
	}
	var head [partHead]byte
	if _, err := e.memory.ReadAt(head[:], e.at); err != nil {
		return nil, err
	}
	tail, end := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	if end < tail || end-tail > e.size {
		return nil, errNoRing
	}
	if !e.begun {
		e.begun, e.end = true, end
		if binary.LittleEndian.Uint64(head[16:]) == end {
			if err := e.readOpen(binary.LittleEndian.Uint64(head[24:])); err != nil {
				return nil, err
			}
		}
	}
	e.pos = max(e.pos, tail) // some may have made room since
	e.b = e.b[:0]
	for e.pos < e.end && len(e.b) < bufferSize/4 {
		var n [entryHead]byte
		if err := e.read(e.pos, n[:]); err != nil {
			return nil, err
		}
		size := uint64(binary.LittleEndian.Uint32(n[:]))
		if size > end-e.pos-entryHead {
			return nil, errNoRing
		}
		was := len(e.b)
		e.b = append(e.b, make([]byte, size)...)
		if err := e.read(e.pos+entryHead, e.b[was:]); err != nil {
			return nil, err
		}
		e.pos += entryHead + size
	}
	if len(e.b) == 0 && len(e.open) > 0 {
		b := e.open[0]
		e.open = e.open[1:]
		return b, nil
	}
	return e.b, nil
}

// readOpen reads the tape's buffer: the Steps that came to their end and, of a process that has ended, what follows them.
func (e *entries) readOpen(whole uint64) error {
	if e.live != nil {
		whole = e.live.whole.Load()
	}
	if whole > ringBuffer { // the tape has gone on elsewhere
		whole = 0
	}
	n := whole
	if e.live == nil {
		n = ringBuffer
	}
	b := make([]byte, n)
	if _, err := e.memory.ReadAt(b, e.at+partHead); err != nil {
		return err
	}
	if whole > 0 {
		e.open = append(e.open, b[:whole])
	}
	if torn := b[whole:]; len(torn) > 0 && torn[0] != 0 {
		e.open = append(e.open, append([]byte{byte(tape.Torn)}, bytes.TrimRight(torn, "\x00")...))
	}
	return nil
}

func (e *entries) read(at uint64, b []byte) error {
	off := at % e.size
	n := min(uint64(len(b)), e.size-off)
	if _, err := e.memory.ReadAt(b[:n], e.at+partHead+ringBuffer+int64(off)); err != nil {
		return err
	}
	_, err := e.memory.ReadAt(b[n:], e.at+partHead+ringBuffer)
	return err
}

// MaxSaved is how many recordings of a NIC are saved in a folder, beside those that operators ask for.
const MaxSaved = 8

// SaveIn saves a recording of the NIC with this cm.name in a folder, where the file's name says when and
// why. It fails when there are MaxSaved of the NIC: what a guest does must not fill a disk.
func SaveIn(folder, name, why string, to func(path string) (int64, error)) (path string, err error) {
	list, err := filepath.Glob(filepath.Join(folder, "vnic_"+name+"_*.rec")) // no name has a character of patterns, or _
	if err == nil && len(list) >= MaxSaved {
		err = fmt.Errorf("%s has %d recordings of this NIC already: move them, and the next is saved", folder, len(list))
	}
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, fmt.Sprintf("vnic_%s_%s_%s.rec", name, time.Now().Format("20060102-150405"), why))
	part := path + ".part" // the file has its name when it is whole
	if _, err = to(part); err == nil {
		err = os.Rename(part, path)
	}
	return path, err
}
