// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command app runs in the pods of tests on real nodes.
//
//	app pause            wait for SIGTERM: the sandbox of every pod
//	app serve SECONDS    serve the host name at port 8080, and count the starts in /data if that
//	                     folder exists; after SIGTERM continue for this number of seconds
//	app stop SECONDS     the preStop hook: write to the log of the first process, and wait
//	app work SECONDS     the work of a Job: write the begin and the end to /data/work
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("want an argument: pause, serve, stop or work")
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	if args[0] == "pause" {
		<-terminated
		return nil
	}
	if len(args) != 2 {
		return fmt.Errorf("%s must be followed by a number of seconds", args[0])
	}
	seconds, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("%q must be a whole number of seconds", args[1])
	}
	wait := time.Duration(seconds) * time.Second
	switch args[0] {
	case "serve":
		return serve(terminated, wait)
	case "stop":
		return stop(wait)
	case "work":
		return work(wait)
	}
	return fmt.Errorf("%q must be one of pause, serve, stop, work", args[0])
}

// say writes a line with a timestamp.
func say(to io.Writer, what ...any) {
	fmt.Fprintln(to, append([]any{time.Now().UTC().Format("15:04:05.000")}, what...)...)
}

func serve(terminated <-chan os.Signal, wait time.Duration) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	say(os.Stdout, "up on", os.Getenv("NODE_NAME"), "as", host, "uid", os.Getuid())
	if err := countStart(host); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		answer := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, host) }
		server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Second}
		failed <- server.ListenAndServe()
	}()
	select {
	case err := <-failed:
		return err
	case s := <-terminated:
		say(os.Stdout, "got", s, "and continues for", wait)
	}
	<-time.After(wait)
	say(os.Stdout, "exit")
	return nil
}

// countStart appends a line to a file in /data, and prints the previous lines.
func countStart(host string) error {
	const file = "/data/starts"
	before, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	after := string(before) + host + "@" + os.Getenv("NODE_NAME") + "\n"
	if err := os.WriteFile(file, []byte(after), 0o644); os.IsNotExist(err) {
		return nil // no volume
	} else if err != nil {
		return err
	}
	say(os.Stdout, "started before:", strings.Join(strings.Fields(string(before)), " "))
	return nil
}

func stop(wait time.Duration) error {
	log, err := os.OpenFile("/proc/1/fd/1", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	say(log, "preStop begins")
	<-time.After(wait)
	say(log, "preStop ends")
	return nil
}

// work appends a line to a file in /data when it begins and when it ends.
func work(wait time.Duration) error {
	file, err := os.OpenFile("/data/work", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := fmt.Fprintln(file, "begin", os.Getenv("NODE_NAME"), os.Getenv("PARAMETER_version")); err != nil {
		return err
	}
	<-time.After(wait)
	_, err = fmt.Fprintln(file, "end", os.Getenv("NODE_NAME"))
	return err
}
