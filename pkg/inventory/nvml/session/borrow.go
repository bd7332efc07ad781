package session

import (
	"context"
	"time"
)

// Borrow gives the session, opened if need be, and keeps it open until it is released. It waits
// for no reading where a session is open.
func (l *Library) Borrow(ctx context.Context) (*Session, func(), error) {
	if s := l.lend(); s != nil {
		return s, l.giveBack, nil
	}
	if err := l.begin(ctx); err != nil {
		return nil, nil, err
	}
	defer l.end()
	if err := l.open(ctx); err != nil {
		return nil, nil, err
	}
	return l.lend(), l.giveBack, nil
}

// lend counts the caller as a user of the session, if there is one.
func (l *Library) lend() *Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.borrowers++
	}
	return l.session
}

func (l *Library) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.borrowers--
}

// borrowed tells whether somebody works with the session.
func (l *Library) borrowed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.borrowers > 0
}

// recallLimit is how long those who have the session for long get to return it; longer than a wait
// for events. A reading may have it for as long as a call may take: then the session stays for now.
const recallLimit = 7 * time.Second

// account is that of those who have the session for long. The library's mu guards it.
type account struct {
	out int
	// back is closed when the library wants the session back; new borrowers wait for the turn then.
	back     chan struct{}
	recalled bool
	// idle is closed when the last one has returned it.
	idle chan struct{}
}

// Loan is the session, lent to who works with it for long.
type Loan struct {
	*Session
	// Recalled is closed when the session is to be returned soon.
	Recalled <-chan struct{}
}

// Lend gives the session, opened if need be, until it is returned: for who works with it for long,
// and returns it soon when it is recalled. The library calls it back when the driver is gone or
// was replaced, and when GPUs came that only a new session serves.
func (l *Library) Lend(ctx context.Context) (Loan, func(), error) {
	if s, ok := l.lendLong(); ok {
		return s, l.returned, nil
	}
	if err := l.begin(ctx); err != nil {
		return Loan{}, nil, err
	}
	defer l.end()
	if err := l.open(ctx); err != nil {
		return Loan{}, nil, err
	}
	s, _ := l.lendLong()
	return s, l.returned, nil
}

func (l *Library) lendLong() (Loan, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == nil || l.loan.idle != nil {
		return Loan{}, false
	}
	if l.loan.out == 0 {
		l.loan.back, l.loan.recalled = make(chan struct{}), false
	}
	l.loan.out++
	l.borrowers++
	return Loan{Session: l.session, Recalled: l.loan.back}, true
}

func (l *Library) returned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.borrowers--
	l.loan.out--
	if l.loan.out == 0 && l.loan.idle != nil {
		close(l.loan.idle)
	}
}

// recall asks for the session back and waits, for a bounded time, until it is; who is patient also for
// calls that were left behind. Nobody gets it for long until done is called. The caller has the turn.
func (l *Library) recall(ctx context.Context, patient bool) (done func()) {
	l.mu.Lock()
	idle := make(chan struct{})
	l.loan.idle = idle
	switch {
	case l.loan.out == 0:
		close(idle)
	case !l.loan.recalled:
		l.loan.recalled = true
		close(l.loan.back)
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, recallLimit)
	defer cancel()
	select {
	case <-idle:
		if patient && !l.borrowed() {
			l.watchdog.Settle(ctx)
		}
	case <-ctx.Done():
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.loan.idle = nil
	}
}
