// An emulator of Pub/Sub for tests: Google's own fake server, in a separate process.
//
// At the first address it accepts all requests. At the optional second address it uses TLS, and accepts requests with
// a token that ACCOUNT has signed. It refuses tokens with another signature or of another account. `data-only-ACCOUNT`
// may do everything except get topics and subscriptions.
//
// Run as: pubsub ADDRESS [TLS-ADDRESS CERTIFICATE KEY ACCOUNT], where the certificate's key signs the tokens.
package main

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"log"
	"net"
	"os"
	"strings"
	"time"

	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func main() {
	// Tests wait until a message is delivered again.
	pstest.SetMinAckDeadline(time.Second)
	server := pstest.NewServerWithAddress(os.Args[1], pstest.ServerReactorOption{FuncName: "Publish", Reactor: schema{}})
	if len(os.Args) == 6 {
		go serveAccount(&server.GServer, os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	}
	select {}
}

// schema refuses a whole request if one message does not fit, as the service does for a topic with a schema.
type schema struct{}

func (schema) React(request any) (bool, any, error) {
	for _, message := range request.(*pb.PublishRequest).Messages {
		if message.Attributes["schema"] == "misfit" {
			return true, &pb.PublishResponse{}, status.Error(codes.InvalidArgument, "a message does not fit the schema")
		}
	}
	return false, nil, nil
}

func serveAccount(service *pstest.GServer, address, certificate, key, account string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	public := &pair.PrivateKey.(*rsa.PrivateKey).PublicKey
	check := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if err := verify(ctx, public, account, info.FullMethod); err != nil {
			return nil, err
		}
		return handle(ctx, request)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	secured := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)), grpc.UnaryInterceptor(check))
	pb.RegisterPublisherServer(secured, service)
	pb.RegisterSubscriberServer(secured, service)
	log.Fatal(secured.Serve(listener))
}

// verify returns the service's error for a token that is invalid or that belongs to another account.
func verify(ctx context.Context, public *rsa.PublicKey, account, method string) error {
	found, _ := metadata.FromIncomingContext(ctx)
	token := strings.TrimPrefix(strings.Join(found.Get("authorization"), ""), "Bearer ")
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return status.Error(codes.Unauthenticated, "the request has no token")
	}
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature) != nil {
		return status.Error(codes.Unauthenticated, "the token has an invalid signature")
	}
	var claims struct {
		Issuer  string `json:"iss"`
		Expires int64  `json:"exp"`
	}
	body, _ := base64.RawURLEncoding.DecodeString(parts[1])
	if json.Unmarshal(body, &claims) != nil || claims.Expires < time.Now().Unix() {
		return status.Error(codes.Unauthenticated, "the token has expired")
	}
	if claims.Issuer != account && (claims.Issuer != "data-only-"+account || strings.Contains(method, "/Get")) {
		return status.Errorf(codes.PermissionDenied, "%s may not use it", claims.Issuer)
	}
	return nil
}
