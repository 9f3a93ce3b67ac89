// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
)

func TestParseForward(t *testing.T) {
	for text, want := range map[string]Forward{
		"198.18.0.1:6443=127.0.0.1:1234": {Listen: "198.18.0.1:6443", To: "127.0.0.1:1234"},
		"198.18.0.1:6443":                {},
		"198.18.0.1=127.0.0.1:1234":      {},
		"198.18.0.1:6443=127.0.0.1":      {},
	} {
		got, err := ParseForward(text)
		if got != want || (err == nil) != (want != Forward{}) {
			t.Errorf("%s: got %+v, error %v, want %+v", text, got, err, want)
		}
	}
}

// TestProxy connects to a server that responds only after the client has closed its side.
func TestProxy(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			connection, err := server.Accept()
			if err != nil {
				return
			}
			said, _ := io.ReadAll(connection)
			_, _ = io.WriteString(connection, "you said "+string(said))
			connection.Close()
		}
	}()
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "proxy.sock"))
	if err != nil {
		t.Fatal(err)
	}
	dialMachine := func(address string) (net.Conn, error) {
		if address != "localhost:1" {
			return nil, errors.New("connection refused")
		}
		return net.Dial("tcp", server.Addr().String())
	}
	proxied := &http.Server{Handler: proxy(dialMachine)}
	go func() { _ = proxied.Serve(socket) }()
	defer proxied.Close()

	for name, test := range map[string]struct {
		request string
		status  int
	}{
		"an address of the machine":          {"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n", http.StatusOK},
		"an address that does not respond":   {"CONNECT 127.0.0.1:2 HTTP/1.1\r\nHost: 127.0.0.1:2\r\n\r\n", http.StatusBadGateway},
		"a request that is not for a tunnel": {"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := net.Dial("unix", socket.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if _, err := io.WriteString(connection, test.request); err != nil {
				t.Fatal(err)
			}
			reader := bufio.NewReader(connection)
			response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != test.status {
				t.Errorf("got status %d, want %d", response.StatusCode, test.status)
			}
			if test.status != http.StatusOK {
				return
			}
			if _, err := io.WriteString(connection, "hello"); err != nil {
				t.Fatal(err)
			}
			if err := connection.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(reader)
			if string(answer) != "you said hello" || err != nil {
				t.Errorf("got response %q, error %v", answer, err)
			}
		})
	}
}
