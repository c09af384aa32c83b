package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/text"
)

// Exit codes of all commands.
const (
	exitOK    = 0
	exitError = 1 // wrong input, or what was asked could not be done
	exitWrong = 2 // it was done, and found something wrong
)

// foundWrong says that a command did its work and found something wrong, which it has printed.
type foundWrong struct{}

func (foundWrong) Error() string { return "found something wrong" }

// exitCode is the exit code for an error, which it prints unless the command has.
func exitCode(err error, stderr io.Writer) int {
	switch invalid := (invalidError{}); {
	case err == nil:
		return exitOK
	case errors.Is(err, foundWrong{}):
		return exitWrong
	case !errors.As(err, &invalid):
		fmt.Fprintln(stderr, "egressway:", text.Lines(err.Error()))
	}
	return exitError
}

// oneOf says what a flag may be, where it is not.
func oneOf(flag, value string, of ...string) error {
	if slices.Contains(of, value) {
		return nil
	}
	return fmt.Errorf("%s %q: one of %s", flag, value, strings.Join(of, ", "))
}

// noDaemon says what to do where no daemon answers.
func noDaemon(err error) error {
	return fmt.Errorf(`%w: is it running? See "systemctl status egressway", in Kubernetes "kubectl -n egressway-system get pods -o wide" and "kubectl -n egressway-system logs"; `+
		`with another status.socket in its configuration, name that with --socket`, err)
}
