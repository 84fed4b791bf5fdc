package cm

// transition is the effect of an event on a connection in some state. An event without an entry is
// illegal in that state: it is counted and changes nothing.
type transition struct {
	next State
	do   func(h *handshake, now Time, c *conn, a *args)
}

// transitions is the whole state machine. A line means: in this state, on this event, execute do
// and change to next.
var transitions = [numStates][numEvents]transition{
	StateReqSent: {
		evREP:          {StateEstablished, (*handshake).establishActive},
		evBadREP:       {StateTimeWait, (*handshake).cancel},
		evREJ:          {StateClosed, (*handshake).rejected},
		evDisconnect:   {StateTimeWait, (*handshake).cancel},
		evFunctionGone: {StateTimeWait, (*handshake).cancelSilently},
		evRetry:        {StateReqSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).cancel},
		evPeerDown:     {StateTimeWait, (*handshake).fail},
	},
	StateReqReceived: {
		evREJ:          {StateClosed, (*handshake).fail},
		evDuplicateREQ: {StateReqReceived, (*handshake).ignore},
		evAccept:       {StateRepSent, (*handshake).openPassive},
		evReject:       {StateClosed, (*handshake).cancelSilently},
		evDisconnect:   {StateClosed, (*handshake).cancel},
		evFunctionGone: {StateClosed, (*handshake).cancelSilently},
		evGiveUp:       {StateClosed, (*handshake).cancel},
		evPeerDown:     {StateClosed, (*handshake).fail},
	},
	StateRepSent: {
		evREJ:          {StateTimeWait, (*handshake).fail},
		evRTU:          {StateEstablished, (*handshake).establishPassive},
		evDREQ:         {StateTimeWait, (*handshake).disconnected},
		evDuplicateREQ: {StateRepSent, (*handshake).resend},
		evDisconnect:   {StateDreqSent, (*handshake).disconnect},
		evFunctionGone: {StateDreqSent, (*handshake).disconnectSilently},
		evRetry:        {StateRepSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).cancel},
		evPeerDown:     {StateTimeWait, (*handshake).fail},
	},
	StateEstablished: {
		evREP:          {StateEstablished, (*handshake).confirm},
		evBadREP:       {StateEstablished, (*handshake).ignore},
		evREJ:          {StateTimeWait, (*handshake).lost},
		evRTU:          {StateEstablished, (*handshake).ignore},
		evDREQ:         {StateTimeWait, (*handshake).disconnected},
		evDuplicateREQ: {StateEstablished, (*handshake).ignore},
		evDisconnect:   {StateDreqSent, (*handshake).disconnect},
		evFunctionGone: {StateDreqSent, (*handshake).disconnectSilently},
		evPeerDown:     {StateEstablished, (*handshake).ignore},
		evPeerRestart:  {StateTimeWait, (*handshake).lost},
	},
	StateDreqSent: {
		evREP:          {StateDreqSent, (*handshake).ignore}, // the peer will get our DREQ
		evBadREP:       {StateDreqSent, (*handshake).ignore},
		evREJ:          {StateTimeWait, (*handshake).ignore},
		evRTU:          {StateDreqSent, (*handshake).ignore},
		evDREQ:         {StateTimeWait, (*handshake).answerDREQ}, // both sides ended it at the same time
		evDREP:         {StateTimeWait, (*handshake).ignore},
		evDuplicateREQ: {StateDreqSent, (*handshake).ignore},
		evFunctionGone: {StateDreqSent, (*handshake).ignore},
		evRetry:        {StateDreqSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).ignore},
		evPeerDown:     {StateTimeWait, (*handshake).ignore},
	},
	StateTimeWait: {
		evREP:          {StateTimeWait, (*handshake).answerStale},
		evBadREP:       {StateTimeWait, (*handshake).answerStale},
		evREJ:          {StateTimeWait, (*handshake).ignore},
		evRTU:          {StateTimeWait, (*handshake).answerStale}, // the peer missed the end
		evDREQ:         {StateTimeWait, (*handshake).answerDREQ},
		evDREP:         {StateTimeWait, (*handshake).ignore},
		evDuplicateREQ: {StateTimeWait, (*handshake).ignore},
		evFunctionGone: {StateTimeWait, (*handshake).ignore},
		evGiveUp:       {StateClosed, (*handshake).ignore},
		evPeerDown:     {StateTimeWait, (*handshake).ignore},
		evPeerRestart:  {StateTimeWait, (*handshake).ignore},
	},
}

// fire applies an event to a connection.
func (h *handshake) fire(now Time, c *conn, ev event, a args) error {
	t := transitions[c.state][ev]
	if t.do == nil {
		h.out.stats.IllegalEvents++
		return ErrState
	}
	t.do(h, now, c, &a)
	if ev == evRetry {
		c.tries++
		h.out.stats.Retries++
		h.arm(now, c)
	}
	if t.next != c.state {
		h.enter(now, c, t.next)
	}
	return nil
}

// enter changes the state, updates the counts and sets the timer.
func (h *handshake) enter(now Time, c *conn, next State) {
	switch u := h.conns.usage(c.par.Function); c.state {
	case StateReqReceived:
		u.backlog.Give(c.source())
	case StateTimeWait:
		c.waiting.Remove()
	}
	c.state, c.tries = next, 0
	switch next {
	case StateClosed:
		h.conns.remove(c)
		return
	case StateReqReceived:
		h.conns.usage(c.par.Function).backlog.Take(c.source())
	case StateEstablished:
		c.msg = nil
	case StateTimeWait:
		c.msg = nil
		h.conns.usage(c.par.Function).waiting.PushBack(&c.waiting, c)
	}
	h.arm(now, c)
}

// arm sets the timer of the connection's state.
func (h *handshake) arm(now Time, c *conn) {
	switch c.state {
	case StateReqSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.ReqTimeout)
	case StateReqReceived:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.AcceptTimeout)
	case StateRepSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.RepTimeout)
	case StateDreqSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.DreqTimeout)
	case StateTimeWait:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.TimeWait)
	default:
		h.conns.timers.Stop(&c.timer)
	}
}

// expired returns the event that the expired timer of c causes.
func (h *handshake) expired(c *conn) event {
	retries := 0
	switch c.state {
	case StateReqSent:
		retries = h.cfg.ReqRetries
	case StateRepSent:
		retries = h.cfg.RepRetries
	case StateDreqSent:
		retries = h.cfg.DreqRetries
	}
	if c.tries < retries {
		return evRetry
	}
	return evGiveUp
}
