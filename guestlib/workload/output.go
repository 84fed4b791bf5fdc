package workload

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Kinds of Output.
const (
	KindProgress = "progress" // Text describes the progress
	KindResult   = "result"   // Result is a finished row
	KindStream   = "stream"   // Stream is a finished measurement of plain IP
	KindProgram  = "program"  // Program is another program's result
	KindDone     = "done"     // the last line of a run that verified everything; Text sums up
	KindError    = "error"    // the last line of any other run; Text says why
)

// Output is one line of output.
type Output struct {
	Kind    string   `json:"kind"`
	Text    string   `json:"text,omitempty"`
	Result  *Result  `json:"result,omitempty"`
	Stream  *Stream  `json:"stream,omitempty"`
	Program *Program `json:"program,omitempty"`
}

// Program is the result of a program that does not use guestlib, run between the two guests.
type Program struct {
	Command string `json:"command"`
	Did     string `json:"did,omitempty"`     // summary of what it did
	Problem string `json:"problem,omitempty"` // why it failed
}

// Stream is the result of plain IP traffic from one guest to the other, measured at the receiver.
type Stream struct {
	Protocol string  `json:"protocol"` // TCP or UDP
	Seconds  float64 `json:"seconds"`
	Bytes    int64   `json:"bytes"`
	Mbps     float64 `json:"mbps"`         // 10^6 bits per second
	Resent   int     `json:"resent"`       // TCP: segments sent again
	LostPct  float64 `json:"lost_percent"` // UDP: datagrams that did not arrive
}

// Result is the result of one operation at one size.
type Result struct {
	Op       string  `json:"op"`
	Size     int     `json:"size"` // bytes
	Count    int     `json:"count"`
	P50US    float64 `json:"p50_us"`  // median time from post to completion
	MeanUS   float64 `json:"mean_us"` // mean of that time
	MBps     float64 `json:"mbps"`    // 10^6 bytes per second, one operation at a time
	Verified bool    `json:"verified"`
	Problem  string  `json:"problem,omitempty"` // the first difference, if not verified
}

// DecodeOutput parses one line of output.
func DecodeOutput(b []byte) (Output, error) {
	var l Output
	if err := json.Unmarshal(b, &l); err != nil {
		return Output{}, fmt.Errorf("workload line: %w", err)
	}
	switch l.Kind {
	case KindProgress, KindDone, KindError:
	case KindResult:
		if l.Result == nil {
			return Output{}, fmt.Errorf("workload line: result without a result")
		}
	case KindStream:
		if l.Stream == nil {
			return Output{}, fmt.Errorf("workload line: stream without a stream")
		}
	case KindProgram:
		if l.Program == nil {
			return Output{}, fmt.Errorf("workload line: program without a program")
		}
	default:
		return Output{}, fmt.Errorf("workload line: unknown kind %q", l.Kind)
	}
	return l, nil
}

// printer writes lines, each with one Write.
type printer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *printer) line(l Output) {
	b, err := json.Marshal(l)
	if err != nil {
		return // only a NaN could cause this, and there is none
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.w.Write(append(b, '\n')) // there is nowhere to report an error
}

func (p *printer) progress(format string, args ...any) {
	p.line(Output{Kind: KindProgress, Text: fmt.Sprintf(format, args...)})
}

// Progress writes a progress line. It is for the time before Run.
func Progress(w io.Writer, text string) { (&printer{w: w}).progress("%s", text) }
