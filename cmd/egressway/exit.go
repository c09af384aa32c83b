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
	exitError = 1 // bad input, or the command could not do its work
	exitWrong = 2 // the command did its work, and found a fault
)

// foundWrong is the error of a command that did its work and found a fault, which it has printed.
type foundWrong struct{}

func (foundWrong) Error() string { return "found something wrong" }

// exitCode returns the exit code for an error, and prints the error unless the command has.
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

// oneOf returns an error unless the flag has one of its values.
func oneOf(flag, value string, of ...string) error {
	if slices.Contains(of, value) {
		return nil
	}
	return fmt.Errorf("%s %q: one of %s", flag, value, strings.Join(of, ", "))
}

// noDaemon adds advice to the error that no daemon answers.
func noDaemon(err error) error {
	return fmt.Errorf(`%w: is it running? See "systemctl status egressway", in Kubernetes "kubectl -n egressway-system get pods -o wide" `+
		`and "kubectl -n egressway-system logs"; with another status.socket in its configuration, name that with --socket`, err)
}
