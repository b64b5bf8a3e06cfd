from server_fixtures import no_credentials, s3_server

__all__ = ["no_credentials", "s3_server"]
